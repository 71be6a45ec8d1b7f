"""MNN's error codes for vkmnn's errors."""

from __future__ import annotations

import sys
from enum import IntEnum

from vkmnn.errors import (
    BudgetError,
    DeviceError,
    InvalidInputError,
    ModelError,
    OutOfDeviceMemoryError,
    PlacementError,
    ShapeError,
    UnsupportedOpError,
    VkmnnError,
)


class ErrorCode(IntEnum):
    """Return codes of MNN's functions."""

    NO_ERROR = 0
    OUT_OF_MEMORY = 1
    NOT_SUPPORT = 2
    COMPUTE_SIZE_ERROR = 3
    NO_EXECUTION = 4
    INVALID_VALUE = 5
    INPUT_DATA_ERROR = 10
    CALL_BACK_STOP = 11
    TENSOR_NOT_SUPPORT = 20
    TENSOR_NEED_DIVIDE = 21


class UnplannedError(InvalidInputError):
    """The session has no plan for the shapes of its inputs."""


class NoDataError(InvalidInputError):
    """A tensor holds no data."""


class ArgumentError(InvalidInputError, ValueError, TypeError):
    """An argument of a function of MNN.expr, MNN.numpy or MNN.cv has a wrong shape or value."""


class OutOfBoundsError(InvalidInputError, IndexError):
    """An index lies outside a Var."""


class NotOfferedError(InvalidInputError, NotImplementedError):
    """A function of MNN's that vkmnn does not have."""


_CODES: dict[type[VkmnnError], ErrorCode] = {
    OutOfDeviceMemoryError: ErrorCode.OUT_OF_MEMORY,
    BudgetError: ErrorCode.OUT_OF_MEMORY,
    UnsupportedOpError: ErrorCode.NOT_SUPPORT,
    PlacementError: ErrorCode.NO_EXECUTION,
    DeviceError: ErrorCode.NO_EXECUTION,
    ShapeError: ErrorCode.COMPUTE_SIZE_ERROR,
    UnplannedError: ErrorCode.COMPUTE_SIZE_ERROR,
    NoDataError: ErrorCode.INPUT_DATA_ERROR,
    ModelError: ErrorCode.INVALID_VALUE,
}


def error_code(error: VkmnnError) -> ErrorCode:
    """Return MNN's code for an error; INVALID_VALUE if it has none."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    return ErrorCode.INVALID_VALUE


_returned = False


def return_error_codes(on: bool = True) -> None:
    """Let functions return MNN's codes, with a message on stderr, instead of raising.

    `python -m vkmnn.mnn` does so for the programs that it runs.
    """
    global _returned
    _returned = on


def answered(error: VkmnnError) -> ErrorCode:
    """Return the code of an error that a function of MNN's would return.

    Raises:
        VkmnnError: the error, unless codes are to be returned.
    """
    if not _returned:
        raise error
    sys.stderr.write(f"{error}\n")
    return error_code(error)
