"""SavedModel folders: the graph of a signature, and where its variables have their values."""

from __future__ import annotations

from pathlib import Path

from vkmnn.converter.tensorflow.bundle import Bundle
from vkmnn.converter.tensorflow.files import (
    GraphFile,
    Signature,
    check_graph,
    check_texts,
    read_message,
)
from vkmnn.converter.tensorflow.schema import Message
from vkmnn.errors import InvalidInputError, ModelFileError, nearest

FILE = "saved_model.pb"
_USUAL = "serving_default"
_TAG = "serve"
_INTERNAL = "__saved_model_"


def read_saved_model(folder: Path, signature: str) -> GraphFile:
    """Read a folder.

    Args:
        folder: the folder.
        signature: which signature; "" for the usual one.

    Raises:
        ModelFileError: it is no SavedModel, or damaged.
        InvalidInputError: it has no such signature.
    """
    path = folder / FILE
    what = f"'{path}'"
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            refusal = f"{what} is not the graph of a SavedModel"
            saved, arrays = read_message(file, size, "SavedModel", refusal, (2, 2))
        values = Bundle(folder)
    except (OSError, ValueError) as error:
        raise ModelFileError(
            f"'{folder}' cannot be read: {error}", hint="check the path and its permissions"
        ) from error
    if not saved.meta_graphs:
        raise ModelFileError(f"{refusal}: it has no graph", hint="the file is of another kind")
    meta = next(
        (one for one in saved.meta_graphs if _TAG in one.meta_info_def.tags), saved.meta_graphs[0]
    )
    check_graph(meta.graph_def, refusal, what)
    found = {}
    for one in meta.signature_def:
        texts = [one.key]
        for entry in (*one.value.inputs, *one.value.outputs):
            texts += [entry.key, entry.value.name]
        check_texts(texts, what, one.key)
        if not one.key.startswith(_INTERNAL) and one.value.outputs:
            found[one.key] = one.value
    chosen = _chosen(found, signature, folder)
    return GraphFile(
        meta.graph_def,
        arrays,
        folder.name,
        Signature(_sorted(chosen.inputs), _sorted(chosen.outputs)),
        tuple(sorted(found)),
        values,
        meta.saver_def.restore_op_name,
    )


def _chosen(found: dict[str, Message], signature: str, folder: Path) -> Message:
    if not found:
        raise ModelFileError(
            f"'{folder}' has no signatures, so its inputs and outputs are unknown",
            hint="save it with tf.saved_model.save(model, folder, signatures=model.call)",
        )
    if not signature and _USUAL not in found and len(found) > 1:
        keys = ", ".join(sorted(found))
        raise InvalidInputError(
            f"'{folder}' has several signatures: {keys}",
            hint=f"name one: {folder.name}#{min(found)}",
        )
    key = signature or (_USUAL if _USUAL in found else next(iter(found)))
    if key not in found:
        raise InvalidInputError(
            f"the model has no signature '{key}'", hint=nearest(key, list(found), "signatures")
        )
    return found[key]


def _sorted(entries: list[Message]) -> dict[str, Message]:
    """Return entries by key, numbers in keys as numbers."""

    def order(key: str) -> tuple[str, int, str]:
        stem = key.rstrip("0123456789")
        digits = key[len(stem) :]
        return stem, int(digits) if digits and len(digits) < 19 else -1, digits

    found = {one.key: one.value for one in entries}
    return {key: found[key] for key in sorted(found, key=order)}
