"""The command line: one file per verb, wiring only."""
