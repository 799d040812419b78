"""SQLite files of profilers, read as they lie."""
