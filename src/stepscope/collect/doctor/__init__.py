"""What can be collected on this machine, and why not what cannot."""
