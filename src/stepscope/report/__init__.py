"""Results and traces written to files, one format a module, and shown in the terminal."""
