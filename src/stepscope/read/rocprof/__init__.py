"""Captures of AMD's rocprofv3: what ran on its GPUs, and the calls that launched it."""
