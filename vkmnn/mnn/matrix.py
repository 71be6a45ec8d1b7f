"""MNN's CVMatrix: a 3 x 3 transformation of points."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import cos, radians, sin
from typing import Any

import numpy as np

from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError


def _scaling(sx: float, sy: float, px: float = 0, py: float = 0) -> Array:
    return np.array([[sx, 0, px - sx * px], [0, sy, py - sy * py], [0, 0, 1]], np.float64)


def _rotation(degrees: float, px: float = 0, py: float = 0) -> Array:
    c, s = cos(radians(degrees)), sin(radians(degrees))
    dx, dy = s * py + (1 - c) * px, -s * px + (1 - c) * py
    return np.array([[c, -s, dx], [s, c, dy], [0, 0, 1]], np.float64)


def _translation(dx: float, dy: float) -> Array:
    return np.array([[1, 0, dx], [0, 1, dy], [0, 0, 1]], np.float64)


class CVMatrix:
    """A transformation of points, the identity at first.

    `set…` replaces it, `pre…` applies another one before it, and `post…` after it.
    """

    def __init__(self) -> None:
        self._values: Array = np.eye(3)

    @classmethod
    def _of(cls, values: Array) -> CVMatrix:
        made = cls()
        made._values = values
        return made

    def setScale(self, sx: float, sy: float, px: float = 0, py: float = 0) -> None:
        """Scale about a point."""
        self._values = _scaling(sx, sy, px, py)

    def preScale(self, sx: float, sy: float, px: float = 0, py: float = 0) -> None:
        """Scale about a point, before."""
        self._values = self._values @ _scaling(sx, sy, px, py)

    def postScale(self, sx: float, sy: float, px: float = 0, py: float = 0) -> None:
        """Scale about a point, after."""
        self._values = _scaling(sx, sy, px, py) @ self._values

    def setRotate(self, degrees: float, px: float = 0, py: float = 0) -> None:
        """Rotate about a point."""
        self._values = _rotation(degrees, px, py)

    def preRotate(self, degrees: float, px: float = 0, py: float = 0) -> None:
        """Rotate about a point, before."""
        self._values = self._values @ _rotation(degrees, px, py)

    def postRotate(self, degrees: float, px: float = 0, py: float = 0) -> None:
        """Rotate about a point, after."""
        self._values = _rotation(degrees, px, py) @ self._values

    def setTranslate(self, dx: float, dy: float) -> None:
        """Move."""
        self._values = _translation(dx, dy)

    def preTranslate(self, dx: float, dy: float) -> None:
        """Move, before."""
        self._values = self._values @ _translation(dx, dy)

    def postTranslate(self, dx: float, dy: float) -> None:
        """Move, after."""
        self._values = _translation(dx, dy) @ self._values

    def setPolyToPoly(self, src: Sequence[float], dst: Sequence[float]) -> None:
        """Map up to four points onto others, each given as x, y, x, y and so on.

        One point moves, two move, rotate and scale, three are any affine map, four a projection.
        If there is no such map, the matrix stays.

        Raises:
            ArgumentError: there are more than four points, or not as many of both.
        """
        source, target = points_of(src), points_of(dst)
        if len(source) != len(target) or len(source) > 4:
            raise ArgumentError("setPolyToPoly takes as many points of both, and at most four")
        with suppress(np.linalg.LinAlgError):
            self._values = _MAPS[len(source)](source, target)

    def invert(self) -> None:
        """Invert the transformation, if it can be inverted."""
        with suppress(np.linalg.LinAlgError):
            self._values = np.linalg.inv(self._values)

    def write(self, value: Sequence[float]) -> None:
        """Set the first of nine values, row by row."""
        values = np.asarray(value, np.float64).reshape(-1)[:9]
        flat = self._values.reshape(-1).copy()
        flat[: values.size] = values
        self._values = flat.reshape(3, 3)

    def read(self) -> list[float]:
        """Return the nine values, row by row."""
        values: list[float] = self._values.astype(np.float32).reshape(-1).tolist()
        return values

    def __repr__(self) -> str:
        rows = ("\t".join(f"{value:f}" for value in row) for row in self._values)
        return f"[{_NEXT.join(f'[{row}]' for row in rows)}]"


_NEXT = "\n "


def points_of(values: Any) -> Array:
    """Return points [n, 2] given as x, y, x, y, … or as pairs.

    Raises:
        ArgumentError: the number of values is odd.
    """
    flat = np.asarray(values, np.float64).reshape(-1)
    if flat.size % 2:
        raise ArgumentError(f"{flat.size} values are no points: each has x and y")
    return flat.reshape(-1, 2)


def _moved(source: Array, target: Array) -> Array:
    return _translation(*(target[0] - source[0]).tolist())


def _similar(source: Array, target: Array) -> Array:
    (ax, ay), (bx, by) = source[1] - source[0], target[1] - target[0]
    turn = complex(bx, by) / complex(ax, ay) if ax or ay else 1
    made = np.array([[turn.real, -turn.imag, 0], [turn.imag, turn.real, 0], [0, 0, 1]])
    made[:2, 2] = target[0] - made[:2, :2] @ source[0]
    return made


def _affine(source: Array, target: Array) -> Array:
    places = np.concatenate([source, np.ones((3, 1))], 1)
    made = np.eye(3)
    made[:2] = np.linalg.solve(places, target).T
    return made


def _projective(source: Array, target: Array) -> Array:
    rows, right = [], []
    for (x, y), (u, v) in zip(source.tolist(), target.tolist(), strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        right += [u, v]
    found = np.linalg.solve(np.array(rows), np.array(right))
    return np.append(found, 1.0).reshape(3, 3)


_MAPS = (lambda source, target: np.eye(3), _moved, _similar, _affine, _projective)
