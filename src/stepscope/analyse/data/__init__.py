"""How the training waits for its data, and what its data pipeline does."""
