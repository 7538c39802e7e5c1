"""What pages ask of the opened runs; nothing here knows Dash."""
