"""Chrome traces: PyTorch's profiler (Kineto), and every other trace in that JSON."""
