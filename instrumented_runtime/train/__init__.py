"""The demo trainer: a small GPT under any parallelism."""
