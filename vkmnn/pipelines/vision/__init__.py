"""Tasks on pictures, one module each."""
