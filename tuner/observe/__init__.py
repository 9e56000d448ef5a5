"""The world to windows: exposition text, counter deltas, recordings."""
