"""One file per family of knobs, each with a `FAMILY`."""
