"""Captures → summaries of ranks, here or on other machines."""
