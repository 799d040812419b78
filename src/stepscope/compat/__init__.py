"""The documented interfaces of other profilers, thin over :mod:`stepscope.collect`."""
