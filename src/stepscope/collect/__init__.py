"""What runs inside the training process: the standard library only; frameworks are imported inside functions."""
