"""What a kernel is expected to cost on a device: the numbers by class of device, and the formulas.

docs/decisions/cost-model.md says what was measured, and what follows from data sheets.
"""
