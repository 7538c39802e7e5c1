"""What gpuscope's recorder counted of each step: time without a core, clocks and power of the GPU."""
