"""What if no operation of a training step were slower than its like? (docs/definitions.md: «Slowdown»)

`grid` brings a job's operations into the pattern that its steps repeat, `dependencies` says what waits for
what in it (`pipeline_links` where computations are known by model chunk and micro-batch), `replay` computes step
times from any durations, `slowdowns` asks the questions.
"""
