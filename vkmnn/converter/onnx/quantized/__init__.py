"""Quantised operators, and tensors that stay quantised between them."""
