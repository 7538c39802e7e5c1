"""The model: a small GPT and its mixture-of-experts form."""
