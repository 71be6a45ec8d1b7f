"""Quantised activations of one byte an element."""
