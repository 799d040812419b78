"""Everything that records PyTorch."""
