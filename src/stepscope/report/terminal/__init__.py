"""The summary in the terminal."""
