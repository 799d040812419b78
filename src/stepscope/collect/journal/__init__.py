"""The files that the training process itself writes."""
