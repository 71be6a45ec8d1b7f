"""Quantised activations of one byte per element."""
