"""Ascend's SQLite databases."""
