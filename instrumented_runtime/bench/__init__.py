"""What the machine can do, measured: collectives, transfers, topology and scaling."""
