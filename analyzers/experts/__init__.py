"""Mixtures of experts: what uneven routing costs beside the network and stragglers, and what an even one gives."""
