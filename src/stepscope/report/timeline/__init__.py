"""A rank as a picture: lanes, slices, arrows and counters, in the formats of timeline viewers."""
