"""Results as CSV, JSON and SQLite."""
