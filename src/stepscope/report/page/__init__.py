"""Results → a page: what the browser shows, and the one file that holds all of it."""
