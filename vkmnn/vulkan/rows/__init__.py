"""Shared parts of ops along an axis: rows and columns, reductions, normalisation."""
