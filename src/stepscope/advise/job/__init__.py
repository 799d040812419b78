"""Rules over the results of a job: each gives the findings of one kind of cause."""
