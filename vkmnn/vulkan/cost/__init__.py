"""Predicted cost of a kernel: constants by class of device, and formulas.

docs/decisions/cost-model.md lists what was measured, and what follows from data sheets.
"""
