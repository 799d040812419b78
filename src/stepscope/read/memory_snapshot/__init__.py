"""Snapshots of PyTorch's caching allocators, as ``torch.cuda.memory._dump_snapshot`` pickles them."""
