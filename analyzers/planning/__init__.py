"""The choice of parallelism for a model and a cluster, without a trace: what fits, what it sends, what it idles."""
