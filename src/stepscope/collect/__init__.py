"""What runs inside the training process. The standard library only at import; frameworks are imported inside functions."""
