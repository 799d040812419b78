"""What XLA's recordings say, in whichever form."""
