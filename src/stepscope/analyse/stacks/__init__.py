"""Python stacks that were sampled: time by line, and the flame graph."""
