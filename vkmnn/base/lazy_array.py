"""Arrays whose content may be released, and is read again on access."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from operator import index
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from vkmnn.base.mapped_files import let_go_of_pages
from vkmnn.errors import ModelFileError

Array = npt.NDArray[np.generic]

LARGE = 1 << 16
"""Bytes from which an array is worth releasing."""


class LazyArray(NDArrayOperatorsMixin):
    """A read-only array that stands in for one in a file.

    Its description is always known, and it can be reshaped. Anything else reads the content, which
    is kept until it is released: numpy's functions convert it, and other attributes are those of
    the content.

    Args:
        dtype: its element type.
        shape: its shape.
        content: the content; None of a reshaped array.
        read: reads the content, with the same element type and shape.
        root: the array whose content this one reshapes.
    """

    __slots__ = ("__weakref__", "_content", "_read", "dtype", "itemsize", "nbytes", "ndim",
                 "root", "shape", "size")  # fmt: skip

    def __init__(
        self,
        dtype: Any,
        shape: tuple[int, ...],
        content: Array | None,
        read: Callable[[], Array],
        root: LazyArray | None = None,
    ) -> None:
        self._content = content
        self._read = read
        self.root = root or self
        self.dtype, self.shape = np.dtype(dtype), shape
        self.ndim, self.size = len(shape), prod(shape)
        self.itemsize = self.dtype.itemsize
        self.nbytes = self.size * self.itemsize

    @property
    def content(self) -> Array:
        """The array; reading it may raise the errors of its file."""
        content = self._content
        if content is None:
            content = self._checked()
            if self.root is self:
                self._content = content
        return content

    @property
    def content_once(self) -> Array:
        """The array for a single use: it is not kept if it had been released."""
        root = self.root
        content = root._checked() if root._content is None else root._content
        return content.reshape(self.shape)

    def _checked(self) -> Array:
        found = self._read()
        if (found.dtype, found.shape) != (self.dtype, self.shape):
            raise ModelFileError(
                f"weights have become {found.dtype}{list(found.shape)}, "
                f"but were {self.dtype}{list(self.shape)} when the model was loaded",
                hint="a file of the model has changed: load it again",
            )
        return found

    def release(self) -> None:
        """Forget the content."""
        self.root._content = None

    def reshape(self, *shape: Any, order: str = "C") -> Any:
        """Return the array in another shape, which is released with this one."""
        wanted = shape[0] if len(shape) == 1 and np.iterable(shape[0]) else shape
        sizes = [index(size) for size in wanted]
        if sizes.count(-1) == 1 and (rest := -prod(sizes)):
            sizes[sizes.index(-1)] = self.size // rest
        if order != "C" or prod(sizes) != self.size:
            return self.content.reshape(*shape, order=order)  # type: ignore[call-overload]
        made, root = tuple(sizes), self.root
        return LazyArray(self.dtype, made, None, lambda: root.content.reshape(made), root)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the content, in another type on request."""
        content = self.content
        if copy or (dtype is not None and content.dtype != dtype):
            return content.astype(dtype or content.dtype)
        return content

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Compute on the content."""
        return getattr(ufunc, method)(*map(whole, inputs), **options)

    def __getitem__(self, part: Any) -> Any:
        """Return a part of the content."""
        return self.content[part]

    def __len__(self) -> int:
        """Return the size of the first axis."""
        return self.shape[0]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the content; protocols that are not declared here have none."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.content, name)

    def __repr__(self) -> str:
        """Return the description."""
        return f"LazyArray({self.dtype}{list(self.shape)})"


def lazy(content: Array, read: Callable[[], Array]) -> Array:
    """Return an array as one that can be released, if it is large.

    Args:
        content: the array.
        read: reads it again.
    """
    return content if content.nbytes < LARGE else _stand_in(content, read)


def _stand_in(content: Array, read: Callable[[], Array]) -> Array:
    return cast(Array, LazyArray(content.dtype, content.shape, content, read))


def as_lazy(array: object) -> LazyArray | None:
    """Return an array that can be released as what it is; None for anything else."""
    return array if isinstance(array, LazyArray) else None


def root_of(array: Array) -> Array:
    """Return the array whose memory another one reshapes: itself, if it cannot be released."""
    found = as_lazy(array)
    return array if found is None else cast(Array, found.root)


def derived(compute: Callable[..., Array], *arrays: Array) -> Array:
    """Return what a function makes of arrays; it can be released if one of them can.

    The arrays are released: after this they are rarely read.
    """
    made = compute(*map(whole, arrays))
    sources = list(map(as_lazy, arrays))
    if all(source is None for source in sources):
        return made
    for source in sources:
        if source is not None:
            source.release()
    return lazy(made, lambda: compute(*map(whole_once, arrays)))


def contiguous(array: Array) -> Array:
    """Return an array whose elements lie in order, as those of lazy arrays do."""
    return array if as_lazy(array) is not None else np.ascontiguousarray(array)


def as_array(value: Any, dtype: Any = None) -> Array:
    """Return a value as `np.asarray` does, without reading a lazy array of that type."""
    if isinstance(value, LazyArray) and dtype in (None, value.dtype):
        return cast(Array, value)
    return np.asarray(value, dtype)


def whole(array: Any) -> Any:
    """Return an array that is in memory; other values are returned as they are."""
    return array.content if isinstance(array, LazyArray) else array


def whole_once(array: Array) -> Array:
    """Return an array in memory for a single use; see `LazyArray.content_once`."""
    found = as_lazy(array)
    return array if found is None else found.content_once


def let_go(array: Array) -> None:
    """Release memory of an array that can be read again: its content, or pages of its file."""
    found = as_lazy(array)
    if found is None:
        let_go_of_pages(array)
    else:
        found.release()
