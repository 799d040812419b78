"""What several readers share: bytes, columns, nesting."""
