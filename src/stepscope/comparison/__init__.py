"""Two recordings against each other: what became slower, by how much, and how sure (``docs/compare.md``)."""
