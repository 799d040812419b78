"""What can be collected on this machine, and why the rest cannot."""
