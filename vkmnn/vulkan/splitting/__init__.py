"""Splitting of ops that are too large for the device."""
