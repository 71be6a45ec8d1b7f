"""References for `vkmnn run --compare`: those of `vkmnn compare`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vkmnn.comparison import check_reference, onnxruntime_of
from vkmnn.comparison.references import is_onnxruntime
from vkmnn.ir import Array

if TYPE_CHECKING:
    from vkmnn.cli.feeds import Feeds

Reference = Callable[["Feeds", Sequence[str]], tuple[str, Mapping[str, Array]]]
"""Computes the expected outputs of these names, and names the engine."""


def reference_for(name: str, model: Path, elsewhere: Reference) -> Reference:
    """Return a function that computes the expected outputs; checks first that it can.

    Args:
        name: a device, or "onnxruntime".
        model: the file.
        elsewhere: computes them on the device of that name.

    Raises:
        VkmnnError: as `vkmnn.comparison.check_reference`.
    """
    check_reference(name, model)
    if not is_onnxruntime(name):
        return elsewhere

    def run(fed: Feeds, names: Sequence[str]) -> tuple[str, Mapping[str, Array]]:
        reference = onnxruntime_of(model)
        return reference.name, reference.values(fed.arrays, names)

    return run
