"""What would the step take without its stragglers? (Lin et al., OSDI 2025)."""
