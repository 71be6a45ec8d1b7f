"""Constants of model files, in the forms that kernels read."""

from __future__ import annotations

from collections.abc import Iterable

from vkmnn.errors import ModelError
from vkmnn.ir import Array, PackedForm
from vkmnn.vulkan.recording import PackedConstant
from vkmnn.vulkan.storage import FLOAT_BYTES


class Forms:
    """Packed constants by constant and form; records new ones on request."""

    def __init__(self) -> None:
        # The forms keep the arrays alive that the keys name by identity.
        self._given: dict[tuple[int, str], PackedForm] = {}
        self._made: dict[tuple[int, str], PackedForm] | None = None
        self._device = ""

    def give(self, forms: Iterable[PackedForm]) -> None:
        """Set the available packed forms, replacing earlier ones."""
        self._given = {(id(one.source), one.form): one for one in forms}

    def collect(self, device: str) -> None:
        """Record packed constants from now on, for a device."""
        self._made, self._device = {}, device

    @property
    def made(self) -> list[PackedForm]:
        """Constants packed since `collect`, in forms that files store."""
        return list((self._made or {}).values())

    def packed(self, constant: PackedConstant, name: str) -> Array:
        """Return a constant's packed form, which is packed unless available.

        Raises:
            ModelError: the size of the given form differs from what kernels read.
            IntegerRangeError: as `PackedConstant.array`.
        """
        key = (id(constant.source), constant.form)
        given = self._given.get(key) if constant.words else None
        if given is not None:
            width = FLOAT_BYTES[constant.element]
            if given.packed.size == constant.words and given.packed.itemsize == width:
                return given.packed
            raise ModelError(
                f"the packed form '{constant.form}' of '{name}' has {given.packed.nbytes} bytes, "
                f"not {constant.words * width}",
                hint="the file is damaged, or not vkmnn's work: convert the model again",
            )
        array = constant.array(name)
        # Two threads may get here for one key: their results are equal.
        if self._made is not None and array.size == constant.words:
            self._made[key] = PackedForm(constant.source, constant.form, array, self._device)
        return array


NO_FORMS = Forms()
