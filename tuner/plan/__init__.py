"""Fits to a schedule: optimise, post-process, explain. Pure: no clock, no I/O."""
