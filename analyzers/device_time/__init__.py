"""Where the time of a device goes, from the events of its own rank alone."""
