"""Public functions whose errors are vkmnn's, whatever numpy makes of their arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vkmnn.errors import OutOfHostMemoryError, VkmnnError
from vkmnn.mnn.codes import ArgumentError, OutOfBoundsError

_WRONG = (
    *(TypeError, ValueError, ArithmeticError, AttributeError, KeyError),
    np.linalg.LinAlgError,
)


def guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises typed errors, which name it."""

    @functools.wraps(function)
    def call(*args: Any, **kargs: Any) -> Any:
        try:
            return function(*args, **kargs)
        except VkmnnError:
            raise
        except IndexError as error:
            raise OutOfBoundsError(f"{name}: {error}") from error
        except _WRONG as error:
            raise ArgumentError(f"{name}: {error}", hint=f"see help({name})") from error
        except MemoryError as error:
            raise OutOfHostMemoryError(f"{name}: {error}") from error

    return call


def all_guarded(module: str, functions: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
    """Return a module's functions with typed errors."""
    return {name: guarded(f"{module}.{name}", one) for name, one in functions.items()}
