"""What if no operation of a training step were slower than its peers? (docs/definitions.md: «Slowdown»)"""
