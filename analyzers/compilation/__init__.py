"""What torch.compile costs: compiling again within steps, graphs that break, ranks that compile unlike."""
