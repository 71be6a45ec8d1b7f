"""Sorting, selection and scatters."""
