"""What collectives cost: every formula and its source, for the analyses, the replay, the planner and the benchmarks.

`bus_bandwidth` has nccl-tests' factors, `message_cost` T = α + S·factor/B, fitted or assumed, `partial_fits` the same
where the trace has too little for a fit, `fixed_part` how likely each α is there, `nccl_model` NCCL's steps, latencies
and bandwidths by algorithm and protocol, with the figures of `nccl_constants`.
"""
