"""What ranks send each other."""
