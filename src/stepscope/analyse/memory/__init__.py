"""Memory over time, and what holds it."""
