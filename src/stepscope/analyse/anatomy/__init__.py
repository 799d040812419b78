"""What steps consist of, how they differ from each other, and which code their operators belong to."""
