"""How the clocks of ranks differ: which ends of collectives say so, the lines through them, hosts with one clock."""
