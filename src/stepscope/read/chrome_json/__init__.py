"""Chrome's trace JSON: documents, events and columns, whatever tool wrote them."""
