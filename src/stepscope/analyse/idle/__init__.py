"""Why devices and host threads do nothing: gaps between their work, and what leads to the end of a step."""
