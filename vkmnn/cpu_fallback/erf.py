"""The error function, which numpy does not have."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# W. J. Cody, "Rational Chebyshev Approximations for the Error Function", Math. Comp. 23 (1969),
# 631-637; coefficients for |x| <= 0.46875, |x| <= 4 and beyond, highest power first.
_NEAR_P = (
    1.85777706184603153e-1,
    3.16112374387056560e00,
    1.13864154151050156e02,
    3.77485237685302021e02,
    3.20937758913846947e03,
)
_NEAR_Q = (
    1.0,
    2.36012909523441209e01,
    2.44024637934444173e02,
    1.28261652607737228e03,
    2.84423683343917062e03,
)
_MIDDLE_P = (
    2.15311535474403846e-8,
    5.64188496988670089e-1,
    8.88314979438837594e00,
    6.61191906371416295e01,
    2.98635138197400131e02,
    8.81952221241769090e02,
    1.71204761263407058e03,
    2.05107837782607147e03,
    1.23033935479799725e03,
)
_MIDDLE_Q = (
    1.0,
    1.57449261107098347e01,
    1.17693950891312499e02,
    5.37181101862009858e02,
    1.62138957456669019e03,
    3.29079923573345963e03,
    4.36261909014324716e03,
    3.43936767414372164e03,
    1.23033935480374942e03,
)
_FAR_P = (
    1.63153871373020978e-2,
    3.05326634961232344e-1,
    3.60344899949804439e-1,
    1.25781726111229246e-1,
    1.60837851487422766e-2,
    6.58749161529837803e-4,
)
_FAR_Q = (
    1.0,
    2.56852019228982242e00,
    1.87295284992346047e00,
    5.27905102951428412e-1,
    6.05183413124413191e-2,
    2.33520497626869185e-3,
)
_NEAR, _MIDDLE = 0.46875, 4.0
_LIMIT = 6.0  # erf(6) rounds to 1 in float64

Floats = npt.NDArray[np.float64]


def _ratio(p: tuple[float, ...], q: tuple[float, ...], x: Floats) -> Floats:
    top, bottom = np.full_like(x, p[0]), np.full_like(x, q[0])
    for coefficient in p[1:]:
        top = top * x + coefficient
    for coefficient in q[1:]:
        bottom = bottom * x + coefficient
    return top / bottom


def erf(x: npt.ArrayLike) -> Floats:
    """Return the error function of every element, in float64, to about 1e-15; NaN stays NaN."""
    values = np.asarray(x, dtype=np.float64)
    size = np.minimum(np.abs(values), _LIMIT)
    result = np.copy(size)
    near = size <= _NEAR
    part = size[near]
    result[near] = part * _ratio(_NEAR_P, _NEAR_Q, part * part)
    middle = (size > _NEAR) & (size <= _MIDDLE)
    part = size[middle]
    result[middle] = 1.0 - np.exp(-part * part) * _ratio(_MIDDLE_P, _MIDDLE_Q, part)
    far = size > _MIDDLE
    part = size[far]
    inverse = 1.0 / (part * part)
    tail = (1.0 / np.sqrt(np.pi) - inverse * _ratio(_FAR_P, _FAR_Q, inverse)) / part
    result[far] = 1.0 - np.exp(-part * part) * tail
    return np.asarray(np.copysign(result, values))
