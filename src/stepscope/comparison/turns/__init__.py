"""Two live programs that take turns on one machine, so that both see the same noise (``docs/compare.md``)."""
