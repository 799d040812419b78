"""What devices did: kernels, runtime calls, counters."""
