"""Jobs bound by communication as other people's programs record them: no framework's marks, kernels of other names, a
link that carries one transfer after the other. Shares no code with tests/simulator, and nothing of gpuscope."""
