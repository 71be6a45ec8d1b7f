"""Tests of vkmnn's own kernels, of whole models and of faults, beside the package."""
