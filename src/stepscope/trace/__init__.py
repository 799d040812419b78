"""What a trace is: the tables, the run directory, the blocks, the clock and the losses."""
