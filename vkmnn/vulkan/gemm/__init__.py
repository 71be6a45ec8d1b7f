"""Matrix products and convolutions: the problems, and the kernels that compute them."""
