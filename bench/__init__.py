"""Measurements of the project: recovery of known truth, and speed."""
