"""Data access of the pages, independent of Dash."""
