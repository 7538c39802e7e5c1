"""The report document, section by section."""
