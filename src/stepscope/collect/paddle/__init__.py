"""Everything that records Paddle."""
