"""Perfetto's own format."""
