"""The machine that trains: what it has, what it allows this process, and how fast it is."""
