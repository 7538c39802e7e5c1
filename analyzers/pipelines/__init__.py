"""Pipeline parallelism (docs/definitions.md: «Pipeline»): the stages, the schedule, and why stages idle.

`ranges` finds a job's computations from its ranges, `stages` maps ranks to stages, `flushes` brings the
computations of a step in order, `schedules` recognises the schedule, `bubbles` measures.
"""
