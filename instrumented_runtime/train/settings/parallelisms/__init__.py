"""One file per parallelism, each with a `PARALLELISM`. No torch: the launcher reads them too."""
