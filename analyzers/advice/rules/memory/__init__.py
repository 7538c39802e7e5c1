"""Advice on copies and on the caching allocator."""
