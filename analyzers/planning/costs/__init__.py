"""What a layout takes by published formulas: memory, messages, time, goodput."""
