"""A view of the timeline as one file, which others open without a server."""
