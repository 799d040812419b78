"""Where the time of a step goes, and the answer in a few numbers."""
