"""What every analysis stands on: its protocol, lanes, steps and their roles, sections of the report."""
