"""Everything that records JAX."""
