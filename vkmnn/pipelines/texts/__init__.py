"""Tasks that take texts."""
