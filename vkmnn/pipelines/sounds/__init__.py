"""Tasks that take or make sounds."""
