"""Facts about machines, each with its source: links, bandwidths, device peaks, topology."""
