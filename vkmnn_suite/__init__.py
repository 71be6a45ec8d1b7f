"""Tests of vkmnn's own kernels, of whole models and of faults, shipped next to the package."""
