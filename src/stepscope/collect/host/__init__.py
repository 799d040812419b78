"""Sources that every Python program has: counters, garbage collection, Python stacks, waits for data."""
