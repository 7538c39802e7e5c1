"""What the analysis of logs finds in jobs whose truth is known."""
