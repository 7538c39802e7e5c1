"""NCCL's own cost model by algorithm, protocol and channels, held to what a trace has measured."""
