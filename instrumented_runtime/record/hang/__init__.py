"""Seeing a hang from inside: Flight Recorder dumps and a watching thread."""
