"""Whether some evaluator on the host runs a node, asked while the model is converted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vkmnn.converter.onnx import HostCheck
from vkmnn.host.engines import ENGINES, EngineError

if TYPE_CHECKING:
    import onnx


def check_on_host(names: Sequence[str]) -> HostCheck:
    """Return what says whether one of these evaluators runs a model of one node.

    Its answer is the types of the outputs, as far as the evaluator tells them, or why none takes
    the node. The onnx package is asked first, as it answers without preparing anything; types
    follow from its rules.
    """
    engines = sorted((ENGINES[name] for name in names), key=lambda engine: engine.name)

    def check(model: onnx.ModelProto) -> Mapping[str, onnx.TypeProto] | str:
        reasons = []
        for engine in engines:
            if not engine.installed():
                reasons.append(f"{engine.name} is not installed")
                continue
            try:
                return engine(model).types()
            except EngineError as error:
                reasons.append(f"{engine.name}: {error}")
        return "; ".join(reasons)

    return check
