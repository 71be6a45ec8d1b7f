"""Type aliases for numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
"""A numpy array of numbers of any dtype."""
