"""Everything that records MindSpore."""
