"""Queries to begin with: of the documentation, the query page and `gpuscope query RUN`."""

from __future__ import annotations

from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class Example:
    """A question and the SQL that answers it."""

    question: str
    sql: str


EXAMPLES = (
    Example(
        "The slowest collectives across ranks, and who came last",
        """\
SELECT c.op, c.bytes, w.whole_ns, w.late_ns, c.rank, c.start_ns, c.dur_ns
FROM (SELECT instance, max(end_ns) - min(start_ns) AS whole_ns, max(start_ns) - min(start_ns) AS late_ns,
        max(start_ns) AS last_ns FROM collectives GROUP BY instance) w
JOIN collectives c ON c.instance = w.instance AND c.start_ns = w.last_ns
ORDER BY w.whole_ns DESC LIMIT 20""",
    ),
    Example(
        "The longest idle gaps, and what the host did meanwhile",
        """\
SELECT rank, start_ns, dur_ns, cause, before, after, host
FROM gaps ORDER BY dur_ns DESC LIMIT 20""",
    ),
    Example(
        "Kernels by total time, with their spread",
        """\
SELECT name, count(*) AS count, sum(dur_ns) AS dur_ns, min(dur_ns) AS min_ns, max(dur_ns) AS max_ns
FROM device_events WHERE kind = 'compute'
GROUP BY name ORDER BY 3 DESC LIMIT 20""",
    ),
    Example(
        "Device time by module or range",
        """\
SELECT kind, name, sum(device_ns) AS device_ns, sum(kernels) AS kernels, sum(host_ns) AS host_ns
FROM ranges GROUP BY kind, name ORDER BY device_ns DESC LIMIT 20""",
    ),
    Example(
        "Launch latency: from the call's end to the kernel's start",
        """\
SELECT d.rank, d.name, d.start_ns, d.dur_ns, d.start_ns - h.end_ns AS latency_ns, h.name AS call
FROM device_events d JOIN host_events h ON h.row = d.launch WHERE d.device IS NOT NULL
ORDER BY latency_ns DESC LIMIT 20""",
    ),
    Example(
        "Steps and their breakdown, the slowest first",
        """\
SELECT rank, step, role, start_ns, dur_ns, breakdown_ns_compute, breakdown_ns_exposed_communication, breakdown_ns_idle
FROM report_steps ORDER BY dur_ns DESC LIMIT 20""",
    ),
    Example(
        "Kernels that one rank runs longer than the others",
        """\
WITH own AS (
  SELECT rank, name, sum(dur_ns) AS dur_ns FROM device_events WHERE kind = 'compute' GROUP BY rank, name)
SELECT a.name, a.rank, a.dur_ns, min(b.dur_ns) AS least_ns, a.dur_ns - min(b.dur_ns) AS more_ns
FROM own a JOIN own b USING (name) GROUP BY a.name, a.rank ORDER BY more_ns DESC LIMIT 20""",
    ),
    Example(
        "Time between operations of a stream",
        """\
SELECT rank, stream, name, end_ns AS start_ns, next_ns - end_ns AS dur_ns FROM (
  SELECT *, lead(start_ns) OVER (PARTITION BY rank, device, stream ORDER BY start_ns) AS next_ns FROM device_events)
WHERE next_ns > end_ns ORDER BY dur_ns DESC LIMIT 20""",
    ),
    Example(
        "Operators by time of their own on the host",
        """\
SELECT name, count, host_self_ns, device_self_ns, kernels
FROM operators ORDER BY host_self_ns DESC LIMIT 20""",
    ),
    Example(
        "What to change, with the predicted step",
        """\
SELECT s.code, s.action, s.predicted_step_ns_before, s.predicted_step_ns_after, f.code AS finding, f.severity
FROM suggestions s LEFT JOIN findings f ON f.code = s.finding
ORDER BY s.predicted_step_ns_after LIMIT 20""",
    ),
)
