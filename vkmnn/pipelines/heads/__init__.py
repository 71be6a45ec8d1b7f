"""Decoders of network outputs ("heads"), recognised by the shapes of the outputs."""
