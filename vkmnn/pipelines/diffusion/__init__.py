"""Images from texts by latent diffusion."""
