"""Injected faults and healthy runs: is the cause, the rank and the cost told right, and is nobody accused falsely?"""
