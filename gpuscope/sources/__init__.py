"""Readers, one file per format (`source.py` has the protocol); `opening.open_trace` is the door."""
