"""What every analysis stands on: lanes, causes, findings, changes, the verdict."""
