"""gpuscope in other frameworks' loops: one file per framework, each needing only that framework."""
