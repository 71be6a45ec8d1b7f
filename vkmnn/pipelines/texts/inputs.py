"""Inputs of networks on tokens."""

from __future__ import annotations

import numpy as np

from vkmnn.errors import InvalidInputError
from vkmnn.pipelines.networks import Loaded

TOKENS = "input_ids"
_INPUTS = (TOKENS, "attention_mask", "token_type_ids", "position_ids")
TYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_,
         "tensor(float)": np.float32, "tensor(float16)": np.float16}  # fmt: skip
"""Element types of these inputs."""
TEXT_VECTORS = ("sentence_embedding", "last_hidden_state", "token_embeddings", "text_embeds")
"""Outputs with the vectors of a text, or of its tokens."""


def takes_text(loaded: Loaded) -> bool:
    """Return whether a network takes only tokens and their companion inputs."""
    names = {arg.name for arg in loaded.inputs}
    return TOKENS in names and names <= set(_INPUTS)


def check_inputs(loaded: Loaded) -> None:
    """Refuse networks with other inputs than tokens.

    Raises:
        InvalidInputError: the network has other inputs.
    """
    if takes_text(loaded) and all(arg.type in TYPES for arg in loaded.inputs):
        return
    shapes = ", ".join(f"{arg.name} {arg.shape}" for arg in loaded.inputs)
    raise InvalidInputError(
        f"'{loaded.about.name}' is no encoder of texts: its inputs are {shapes}",
        hint=f"encoders take {', '.join(_INPUTS)}; choose another task: --task",
    )
