"""Rules: from findings to settings with a predicted gain, one file per topic."""
