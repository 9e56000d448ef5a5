"""Simulated engines that speak a real engine's metrics and admin API; they know nothing of the fits."""
