"""MNN.cv: functions on images, by the names of OpenCV's, on numpy and pillow.

Images are Vars [height, width, channels] of format NHWC, with channels in the order B, G, R.
"""

from __future__ import annotations

from typing import Any, NoReturn

from vkmnn.mnn.cv import basics, contours, drawing, files, filters, geometry, poses
from vkmnn.mnn.cv.colors import cvtColor, cvtColorTwoPlane
from vkmnn.mnn.cv.constants import CONSTANTS
from vkmnn.mnn.guarded import all_guarded
from vkmnn.mnn.refused import refuse

FUNCTIONS: dict[str, Any] = all_guarded(
    "cv",
    {
        **basics.FUNCTIONS,
        **contours.FUNCTIONS,
        **drawing.FUNCTIONS,
        **filters.FUNCTIONS,
        **geometry.FUNCTIONS,
        **poses.FUNCTIONS,
        "cvtColor": cvtColor,
        "cvtColorTwoPlane": cvtColorTwoPlane,
        "haveImageReader": files.haveImageReader,
        "haveImageWriter": files.haveImageWriter,
        "imdecode": files.imdecode,
        "imencode": files.imencode,
        "imread": files.imread,
        "imwrite": files.imwrite,
    },
)
"""MNN.cv's functions by name."""

globals().update(FUNCTIONS)
globals().update(CONSTANTS)

__all__ = [*FUNCTIONS, *CONSTANTS]


def __getattr__(name: str) -> NoReturn:
    """Raise for a missing name, with the reason."""
    refuse("cv", name)
