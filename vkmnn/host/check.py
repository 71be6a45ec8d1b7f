"""Checks during conversion whether an evaluator on the host runs a node."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from vkmnn.converter.onnx import HostCheck
from vkmnn.host.engines import ENGINES, EngineError

if TYPE_CHECKING:
    import onnx


def check_on_host(names: Sequence[str]) -> HostCheck:
    """Return a function that checks whether one of these evaluators can run a one-node model.

    It returns the types of the outputs, as far as evaluators know them, or the reason why none runs
    the node. The onnx package is asked first, as it answers without preparation; onnxruntime, which
    knows types, is asked as well if one is unknown.
    """
    engines = sorted((ENGINES[name] for name in names), key=lambda engine: engine.name)

    def check(
        model: onnx.ModelProto, untyped: Collection[str]
    ) -> Mapping[str, onnx.TypeProto] | str:
        reasons = []
        types: dict[str, onnx.TypeProto] | None = None
        for engine in engines:
            if not engine.installed():
                reasons.append(f"{engine.name} is not installed")
                continue
            try:
                types = {**engine(model).types(), **(types or {})}
            except EngineError as error:
                reasons.append(f"{engine.name}: {error}")
                continue
            if all(name in types for name in untyped):
                break
        return "; ".join(reasons) if types is None else types

    return check
