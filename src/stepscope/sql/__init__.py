"""Questions in SQL over a run: what a query can name, and the database that answers it and reaches nothing else."""
