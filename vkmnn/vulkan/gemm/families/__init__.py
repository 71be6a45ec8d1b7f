"""The families of kernels, one module each."""
