"""The files that the training process writes itself."""
