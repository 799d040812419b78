"""What a program has set in PyTorch: its models, optimizers and switches."""
