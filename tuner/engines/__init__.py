"""One file per engine: metric names, schedule dialect, limits."""
