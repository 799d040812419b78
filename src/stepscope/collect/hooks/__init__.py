"""Wrapping functions of other libraries, and taking the wrappers out again."""
