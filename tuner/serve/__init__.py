"""HTTP: the tuner's own metrics, its health, a read-only JSON API."""
