"""MNN.cv's rotations and poses of cameras."""

from __future__ import annotations

from typing import Any

import numpy as np

from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError
from vkmnn.mnn.cv.images import to_plain
from vkmnn.mnn.expr.var import Var
from vkmnn.mnn.matrix import points_of

_STEPS = 100  # of the refinement


def Rodrigues(src: Any) -> Var:
    """Return the rotation vector [3, 1] of a rotation matrix [3, 3]."""
    matrix = np.asarray(to_plain(src), np.float64)
    if matrix.shape != (3, 3):
        raise ArgumentError(f"a rotation matrix has shape [3, 3], not {matrix.shape}")
    return Var(_vector(matrix).astype(np.float32)[:, None])


def _vector(matrix: Array) -> Array:
    u, _, v = np.linalg.svd(matrix)
    turn = u @ v
    axis = np.array([turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1]])
    sine, cosine = np.linalg.norm(axis) / 2, float(np.clip((np.trace(turn) - 1) / 2, -1, 1))
    angle = float(np.arctan2(sine, cosine))
    if sine > 1e-6:
        return np.asarray(axis / (2 * sine) * angle)
    if cosine > 0:
        return np.zeros(3)
    square = (turn + np.eye(3)) / 2  # half a turn: the outer product of the axis with itself
    longest = int(np.argmax(np.diag(square)))
    return np.asarray(square[longest] / np.sqrt(square[longest, longest]) * angle)


def _matrix(vector: Array) -> Array:
    angle = np.linalg.norm(vector)
    if angle < 1e-12:
        return np.eye(3)
    x, y, z = vector / angle
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.asarray(np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross)


def solvePnP(
    objectPoints: Any, imagePoints: Any, cameraMatrix: Any, distCoeffs: Any, flags: int = 0
) -> tuple[bool, Var, Var]:
    """Return whether there is a pose of a camera for points in an image, and the pose.

    Args:
        objectPoints: [points, 3].
        imagePoints: [points, 2].
        cameraMatrix: [3, 3].
        distCoeffs: ignored, as in MNN: lenses have no distortion.
        flags: ignored: there is one method.

    Returns:
        True, the rotation vector [3, 1] and the translation [3, 1].

    Raises:
        ArgumentError: there are fewer than three points, or not as many of both.
    """
    objects = np.asarray(to_plain(objectPoints), np.float64).reshape(-1, 3)
    camera = np.asarray(to_plain(cameraMatrix), np.float64).reshape(3, 3)
    pixels = points_of(to_plain(imagePoints))
    if len(objects) != len(pixels) or len(objects) < 3:
        raise ArgumentError(f"{len(objects)} points in space do not suit {len(pixels)} in an image")
    rays = np.concatenate([pixels, np.ones((len(pixels), 1))], 1) @ np.linalg.inv(camera).T
    goal = rays[:, :2] / rays[:, 2:]
    spread = max(float(np.abs(objects - objects.mean(0)).max()), 1e-12)
    # The angle of a rotation whose matrix is near the best one decides the minimum: try several.
    starts = [np.zeros(3), *(np.eye(3) * np.pi * 0.95), *(np.eye(3) * np.pi / 2)]
    found = [_refined(objects / spread, goal, np.concatenate([one, [0, 0, 5]])) for one in starts]
    in_front = [
        pose
        for pose in found
        if ((objects / spread) @ _matrix(pose[1][:3]).T)[:, 2].min() + pose[1][5] > 0
    ]
    error, pose = min(in_front or found, key=lambda one: one[0])
    vector = _vector(_matrix(pose[:3]))
    made = (
        Var(vector.astype(np.float32)[:, None]),
        Var((pose[3:] * spread).astype(np.float32)[:, None]),
    )
    return bool(np.isfinite(error)), *made


def _residual(objects: Array, goal: Array, pose: Array) -> Array:
    """Return the distances of points from the rays of their images, at their depth (SQPnP)."""
    places = objects @ _matrix(pose[:3]).T + pose[3:]
    return np.asarray((places[:, :2] - places[:, 2:] * goal).reshape(-1))


def _refined(objects: Array, goal: Array, pose: Array) -> tuple[float, Array]:
    """Return the error and the pose at a minimum, by Levenberg and Marquardt's method."""
    damping, residual = 1e-3, _residual(objects, goal, pose)
    for _ in range(_STEPS):
        step = 1e-6
        slopes = np.stack(
            [(_residual(objects, goal, pose + step * one) - residual) / step for one in np.eye(6)],
            1,
        )
        normal = slopes.T @ slopes
        try:
            change = np.linalg.solve(
                normal + damping * np.diag(np.diag(normal) + 1e-12), -slopes.T @ residual
            )
        except np.linalg.LinAlgError:
            break
        tried = _residual(objects, goal, pose + change)
        if tried @ tried < residual @ residual:
            pose, residual, damping = pose + change, tried, max(damping / 5, 1e-12)
        else:
            damping = min(damping * 5, 1e12)
    return float(residual @ residual), pose


FUNCTIONS: dict[str, Any] = {"Rodrigues": Rodrigues, "solvePnP": solvePnP}
