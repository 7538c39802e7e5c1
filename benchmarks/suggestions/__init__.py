"""Every suggestion made for a set of traces, by rule."""
