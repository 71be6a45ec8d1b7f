"""Names of MNN's Python API that vkmnn does not have, with the reasons."""

from __future__ import annotations

from typing import NoReturn

from vkmnn.errors import page

_TRAINING = "vkmnn does not train networks; train with PyTorch, and export to ONNX"
_ONE_OP = "vkmnn runs MNN's operators in networks; use the functions of MNN.expr"

REFUSED: dict[str, dict[str, str]] = {
    "": {
        "audio": "vkmnn computes spectrograms in vkmnn.pipeline('speech-to-text', …)",
        "data": _TRAINING,
        "optim": _TRAINING,
    },
    "expr": {
        "detection_post_process": "use vkmnn.pipeline('object-detection', …)",
        "jsonop": _ONE_OP,
    },
    "nn": dict.fromkeys(
        (
            *("EmptyModule", "batch_norm", "compress", "conv", "dropout", "dummy", "linear"),
            "loss",
        ),
        _TRAINING,
    ),
    "numpy": {
        "bmat": "MNN.numpy does not compute it, either; use block",
        "flatiter": "MNN.numpy does not have it, either; iterate over x.flatten()",
        "nditer": "MNN.numpy does not have it, either; iterate over x.flatten()",
        "nested_iters": "MNN.numpy does not have it, either; iterate over x.flatten()",
        "sort_complex": "Vars have no complex numbers",
    },
    "llm": {
        "LLM": "the class is Llm, and create makes its objects",
        "Reranker": "vkmnn.llm has no models that rank texts",
        "create_reranker": "vkmnn.llm has no models that rank texts",
    },
}
"""Module -> name -> why it is missing."""


def refuse(module: str, name: str) -> NoReturn:
    """Raise AttributeError for a name that a module lacks."""
    package = __name__.rpartition(".")[0]
    where = f"{package}.{module}" if module else package
    reason = REFUSED.get(module, {}).get(name)
    text = f"{reason}; see" if reason else "see"
    raise AttributeError(
        f"module '{where}' has no attribute '{name}': {text} {page('coming-from-mnn')}"
    )
