"""The inverse of the error function, which numpy does not have."""

from __future__ import annotations

import numpy as np

from vkmnn.mnn.arrays import Array

# M. Giles, "Approximating the erfinv function" (2010): two polynomials in w = -log(1 - x²).
_CENTRE = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)


def erfinv(x: Array) -> Array:
    """Return the inverse of the error function; infinite at -1 and 1."""
    wide = x.astype(np.float64)
    w = -np.log((1 - wide) * (1 + wide))
    centre = np.polyval(_CENTRE, w - 2.5)
    tail = np.polyval(_TAIL, np.sqrt(np.maximum(w, 5)) - 3)
    found = np.where(w < 5, centre, tail) * wide
    return np.where(np.abs(wide) == 1, np.copysign(np.inf, wide), found).astype(x.dtype)
