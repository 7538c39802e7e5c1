"""What gpuscope says: one record per finding and suggestion, which makes the words from the facts.

Analyses hand over facts. Every front (terminal, HTML, dashboard, JSON, assistants, docs/findings.md) takes the words
from here, and no code outside reads a sentence: what another part needs to know is a field of the record.
Problems of an input have their table below all readers: `gpuscope.problems`.
"""
