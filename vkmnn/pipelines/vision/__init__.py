"""Image tasks, one module each."""
