"""Training jobs of many ranks, simulated: Kineto files of every rank beside the truth about the job."""
