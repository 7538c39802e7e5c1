"""Columns of a table: numpy arrays under a declared schema, with names kept once."""
