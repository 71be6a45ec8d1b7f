"""Checks during conversion whether an evaluator on the host runs a node."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from vkmnn.converter.onnx import HostCheck
from vkmnn.host.engines import ENGINES, EngineError

if TYPE_CHECKING:
    import onnx


def check_on_host(names: Sequence[str]) -> HostCheck:
    """Return a function that tells whether one of these evaluators runs a model of one node.

    Its answer is the types of the outputs, as far as evaluators tell them, or why none takes the
    node. The onnx package is asked first, as it answers without preparing anything; onnxruntime,
    which tells types, is asked as well where one is not known.
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
