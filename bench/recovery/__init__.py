"""Recovery of known truth by simulation."""
