"""Matrix products and convolutions.

`problem` has their sizes, all that rules look at; `job` adds the tensors; `weights` and
`operands` the forms in which kernels read these. `family` says what a family of kernels is, and
`families/` has one module each. `rewrites/` turns convolutions into faster ones. `encode` is what
operators call: rank over all families, let the encoder choose, record.
"""
