"""Tensors of a planned network: static description and location of the data."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable
from dataclasses import field

from vkmnn.base.elements import FloatElement
from vkmnn.base.records import dataclass
from vkmnn.errors import PluginError
from vkmnn.ir import Array, DType, Layout, TensorInfo


class Usage(enum.Enum):
    """Role of a tensor in the plan (MNN's tensor usage)."""

    NORMAL = "normal"
    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"


@dataclass(slots=True, eq=False, frozen=True, init=False)
class Tensor:
    """A tensor of one plan: static shape, layout, usage, and its value if constant.

    Constants of a network are tensors of all its plans (`core/static.py`).

    `element` is the storage type of its floats on the device. `codes`, if set, means that they are
    integers stored in a byte each: the offset that is added to the signed bytes.

    Ownership: the plan creates a tensor in plain form and passes it on with the commands of
    `Backend.on_resize_begin`. Only there, the backend gives the results of its own commands another
    form (`take_form`); it leaves other tensors as they are, and converts them. When
    `on_resize_begin` returns, the plan settles all tensors: from then on no tensor changes, and
    another form needs another tensor.
    """

    info: TensorInfo
    usage: Usage
    layout: Layout
    value: Array | None
    element: FloatElement
    codes: int | None
    name: str = field(init=False, repr=False)
    """The tensor's name, unique in the plan."""
    shape: tuple[int, ...] = field(init=False, repr=False)
    """The static shape."""
    _settled: bool = field(init=False, repr=False)
    _kind: Hashable = field(init=False, repr=False)

    def __init__(
        self,
        info: TensorInfo,
        usage: Usage = Usage.NORMAL,
        layout: Layout = Layout.NCHW,
        value: Array | None = None,
        element: FloatElement = "f32",
        codes: int | None = None,
    ) -> None:
        # Set the slots directly: a plan makes thousands of these, and this is five times faster.
        _set_info(self, info)
        _set_name(self, info.name)
        _set_shape(self, info.dims)
        _set_usage(self, usage)
        _set_layout(self, layout)
        _set_value(self, value)
        _set_element(self, element)
        _set_codes(self, codes)
        _set_settled(self, False)
        _set_kind(self, None)

    def take_form(self, layout: Layout, element: FloatElement, codes: int | None = None) -> None:
        """Change the layout or element on the device; the class says when this is allowed.

        Raises:
            PluginError: the tensor's form is final.
        """
        if self._settled:
            raise PluginError(
                f"the form of tensor '{self.name}' can no longer change",
                hint="change it in on_resize_begin, or create a new tensor",
            )
        _set_layout(self, layout)
        _set_element(self, element)
        _set_codes(self, codes)
        _set_kind(self, None)

    def settle(self) -> None:
        """Make the form final."""
        _set_settled(self, True)

    @property
    def kind(self) -> Hashable:
        """All properties but name and content: equal for tensors that kernels treat alike."""
        if self._kind is None:
            constant = self.value is not None
            kind = self.shape, self.info.dtype, self.layout, self.element, self.codes, constant
            _set_kind(self, kind)
        return self._kind

    @property
    def dtype(self) -> DType:
        """The ONNX element type of the tensor; a backend may store it wider or narrower."""
        return self.info.dtype


_set_info, _set_usage, _set_layout, _set_value, _set_element, _set_codes = (
    vars(Tensor)[name].__set__ for name in ("info", "usage", "layout", "value", "element", "codes")
)
_set_name, _set_shape, _set_settled, _set_kind = (
    vars(Tensor)[name].__set__ for name in ("name", "shape", "_settled", "_kind")
)


def are_plain(tensors: Iterable[Tensor | None]) -> bool:
    """Return whether all tensors have their default form."""
    # A loop is faster than all() and a generator, and planning asks for every op.
    for tensor in tensors:
        if tensor is None:
            continue
        if tensor.layout is not Layout.NCHW or tensor.element != "f32":
            return False
        if tensor.codes is not None:
            return False
    return True
