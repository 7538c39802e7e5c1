"""The dashboard: a Dash application that shows reports and timelines and computes no numbers of its own."""
