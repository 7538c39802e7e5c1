"""What a plan is made for: a model and a cluster, by name, by their parts or by a file."""
