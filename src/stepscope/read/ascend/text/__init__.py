"""Ascend's text files."""
