"""The rules, by class of stall; each names the settings that answer a finding."""
