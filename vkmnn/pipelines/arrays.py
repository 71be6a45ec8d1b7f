"""The type of arrays that are computed with."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
"""An array of numbers whose type checkers need not know."""
