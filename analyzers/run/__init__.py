"""From files to the report: runs the analyses one file at a time and puts their results together."""
