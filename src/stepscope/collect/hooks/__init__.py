"""Wrap functions of other libraries, and remove the wrappers again."""
