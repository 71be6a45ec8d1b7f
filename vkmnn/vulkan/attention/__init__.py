"""Kernels of attention and their predicted times."""
