"""Tables to results: pure functions over Polars frames, one file per question."""
