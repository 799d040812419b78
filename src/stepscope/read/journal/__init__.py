"""stepscope's own journal."""
