"""A simulator of GPU training jobs: what CUDA would do with a program, the trace of it, and the truth about it.

It shares no code with gpuscope, so that what it says can judge what gpuscope says.
"""
