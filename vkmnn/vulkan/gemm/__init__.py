"""Matrix products and convolutions.

`problem` has their sizes; `job` adds the tensors and an `epilogue`; `weights` and `operands` the
forms in which kernels read these. `traits` names what crosses kernels; `target` is what kernels
are ranked for: a device, and the traits that a job needs and allows. `family` says what a family
of kernels is, and `families/` has one module each. `rewrites/` turns convolutions into faster
ones. `encode` is what operators call: rank over all families, let the encoder choose, record.
"""
