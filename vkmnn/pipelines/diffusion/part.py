"""The networks of a pipeline folder, each in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.networks import load, open_session
from vkmnn.pipelines.options import Options
from vkmnn.pipelines.texts.inputs import TYPES

_TYPES = {**TYPES, "tensor(double)": np.float64}


class Part:
    """A network of a pipeline folder.

    Args:
        folder: its folder.
        options: device and settings of the session.

    Attributes:
        config: its config.json.
        inputs: its inputs by name.
        session: the open session.

    Raises:
        ModelError: the network is missing or damaged.
    """

    def __init__(self, folder: Path, options: Options) -> None:
        loaded = load(folder, options)
        self.folder = folder
        self.config = loaded.about.config
        self.inputs = {arg.name: arg for arg in loaded.inputs}
        odd = [arg for arg in loaded.inputs if arg.type not in _TYPES]
        if odd:
            raise InvalidInputError(f"'{folder}': the input '{odd[0].name}' is {odd[0].type}")
        self.session = open_session(loaded, options)
        self.outputs = [arg.name for arg in self.session.get_outputs()]

    def input(self, *names: str) -> str:
        """Return the first of these names that the network has.

        Raises:
            InvalidInputError: it has none of them.
        """
        found = next((name for name in names if name in self.inputs), None)
        if found is None:
            raise InvalidInputError(
                f"'{self.folder}' has no input '{names[0]}': it has {', '.join(self.inputs)}",
                hint="export the folder with optimum-cli export onnx",
            )
        return found

    def side(self, name: str, axis: int) -> int | None:
        """Return the static size of an input's axis; None if it is dynamic."""
        shape = self.inputs[name].shape
        size = shape[axis] if shape is not None and len(shape) > axis else None
        return size if isinstance(size, int) else None

    def cast(self, name: str, values: Any) -> Array:
        """Return values in an input's element type."""
        return np.ascontiguousarray(np.asarray(values).astype(_TYPES[self.inputs[name].type]))

    def upload(self, name: str, values: Any) -> Any:
        """Return values of an input that stay on the device."""
        return self.session.upload(self.cast(name, values))

    def only(self, known: Iterable[str]) -> None:
        """Refuse inputs that are not known.

        Raises:
            InvalidInputError: the network has another input.
        """
        for name in self.inputs:
            if name not in known:
                raise InvalidInputError(
                    f"'{self.folder}' has an input '{name}', whose value is unknown",
                    hint="run the network by itself: vkmnn.load(model)",
                )

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Return the outputs by name."""
        return dict(zip(self.outputs, self.session.run(None, feeds), strict=True))

    def close(self) -> None:
        """Release device memory."""
        self.session.close()


def open_part(folder: Path, names: Iterable[str], options: Options) -> Part | None:
    """Return the first network of a folder under one of these names; None if there is none."""
    for name in names:
        if (folder / name).is_dir():
            return Part(folder / name, options)
    return None


def needed_part(folder: Path, name: str, options: Options) -> Part:
    """Return a network of a folder.

    Raises:
        ModelFileError: it is missing.
    """
    found = open_part(folder, (name,), options)
    if found is None:
        raise ModelFileError(
            f"'{folder}' has no folder '{name}'",
            hint="a folder as diffusers and optimum write it: text_encoder, unet, vae_decoder, …",
        )
    return found
