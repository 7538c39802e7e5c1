"""Jobs for reinforcement learning: the time of each role in a step, what bounds it, and what other schedules give."""
