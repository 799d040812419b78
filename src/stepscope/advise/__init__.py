"""Results → findings: what makes the steps slow, what a change saves, and how we know."""
