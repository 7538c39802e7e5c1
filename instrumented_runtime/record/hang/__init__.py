"""Hang detection inside the job: Flight Recorder dumps and a watchdog thread."""
