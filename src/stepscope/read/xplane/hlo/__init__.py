"""Compiled programs of XLA."""
