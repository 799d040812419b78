"""Operators on the host, by name and by call."""
