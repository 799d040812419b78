"""Nsight Systems' SQLite export."""
