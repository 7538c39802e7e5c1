"""torch.profiler (Kineto) JSON."""
