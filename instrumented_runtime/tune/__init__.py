"""`gpuscope tune` and `gpuscope again`: advice followed, measured, and kept only where it holds."""
