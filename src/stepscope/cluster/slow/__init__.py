"""Ranks that take longer than their peers: who, how much, and what of their own makes it so."""
