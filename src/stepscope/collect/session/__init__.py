"""A recording from start to stop: sessions, windows, and what a window leaves behind."""
