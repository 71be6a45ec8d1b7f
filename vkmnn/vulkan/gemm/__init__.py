"""Matrix products and convolutions.

`problem` holds the sizes of a product or convolution; `job` adds tensors and an `epilogue`;
`weights` and `operands` define packed forms. `traits` names features that apply to several kernels;
`target` is the context of a ranking: a device, and the traits that a job needs and allows. `family`
is the interface of a kernel family, and `families/` has one module for each. `rewrites/` replaces
convolutions with faster ones. `encode` is the entry point of operators: it ranks all families, lets
the encoder choose, and records.
"""
