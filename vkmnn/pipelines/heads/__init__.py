"""Decoding of what networks return; heads are recognised by the shapes of their outputs."""
