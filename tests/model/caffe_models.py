"""Networks of Caffe's for tests: text, weights in Caffe's binary form, and OpenCV to run them.

Weights are written in the wire format itself, so that vkmnn's own schema is not used to test
itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

Arrays = Mapping[str, Sequence[np.ndarray]]


def varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def field(number: int, content: bytes | int | str) -> bytes:
    """Return a field of a protobuf message: a number, or bytes."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def blob(array: np.ndarray, legacy: bool = False, double: bool = False) -> bytes:
    """Return a BlobProto; old ones state four sizes."""
    array = np.asarray(array)
    if legacy:
        shape = [*[1] * (4 - array.ndim), *array.shape]
        head = b"".join(field(number, size) for number, size in enumerate(shape, 1))
    else:
        head = field(7, field(1, b"".join(varint(size) for size in array.shape)))
    data = array.astype("<f8" if double else "<f4").tobytes()
    return field(8 if double else 5, data) + head


def weights(arrays: Arrays, form: str = "layer") -> bytes:
    """Return a caffemodel with weights only: in the current form, "v1" or "v0"."""
    parts = [field(1, "net")]
    for name, blobs in arrays.items():
        if form == "layer":
            held = b"".join(field(7, blob(one)) for one in blobs)
            parts.append(field(100, field(1, name) + field(2, "?") + held))
        elif form == "v1":
            held = b"".join(field(6, blob(one, legacy=True)) for one in blobs)
            parts.append(field(2, field(4, name) + held))
        else:
            held = b"".join(field(50, blob(one, legacy=True)) for one in blobs)
            kind = "conv" if blobs[0].ndim == 4 else "innerproduct"
            layer = field(1, name) + field(2, kind) + held
            parts.append(field(2, field(1, layer)))
    return b"".join(parts)


def snapshot(
    shape: Sequence[int], blobs: Sequence[np.ndarray], kind: str = "Input", parameters: bytes = b""
) -> bytes:
    """Return a caffemodel that contains its network, as after training: a convolution and a loss.

    Args:
        shape: the shape of the input.
        blobs: four filters of 3 x 3, and their biases.
        kind: the type of the layer that the input comes from.
        parameters: its parameters, unless it is an Input layer.
    """
    source = field(1, "data") + field(2, kind) + field(4, "data") + field(4, "label")
    source += parameters or field(143, field(1, field(1, bytes(shape))))
    window = field(1, 4) + field(4, 3)
    conv = field(1, "conv") + field(2, "Convolution") + field(3, "data") + field(4, "conv")
    conv += b"".join(field(7, blob(one)) for one in blobs) + field(106, window)
    loss = field(1, "loss") + field(2, "SoftmaxWithLoss") + field(3, "conv") + field(3, "label")
    loss += field(4, "loss")
    return field(1, "whole") + b"".join(field(100, one) for one in (source, conv, loss))


def saved(folder: Path, text: str, arrays: Arrays, form: str = "layer") -> Path:
    """Write a network with its weights and return the path of the text."""
    path = folder / "net.prototxt"
    path.write_text(text)
    if arrays:
        path.with_suffix(".caffemodel").write_bytes(weights(arrays, form))
    return path


def by_opencv(
    path: Path, feeds: Mapping[str, np.ndarray], layers: Sequence[str] = ()
) -> list[np.ndarray]:
    """Return OpenCV's results: all outputs of these layers, or of the last one."""
    cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed: pip install 'vkmnn[test]'")
    if not hasattr(cv2.dnn, "readNetFromCaffe"):
        pytest.skip("OpenCV 5 reads no Caffe: pip install 'opencv-python-headless<5'")
    held = path.with_suffix(".caffemodel")
    net = cv2.dnn.readNetFromCaffe(str(path), *[str(held)] * held.is_file())
    for name, array in feeds.items():
        net.setInput(array, name)
    wanted = list(layers) or net.getLayerNames()[-1:]
    return [array for one in net.forwardAndRetrieve(wanted) for array in one]
