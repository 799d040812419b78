"""What the XLA profiler writes (JAX): ``*.xplane.pb``, with the compiled programs in it."""
