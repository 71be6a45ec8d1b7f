"""The signature of a network's outputs before its first run."""

from __future__ import annotations

from collections.abc import Callable

from vkmnn.errors import VkmnnError
from vkmnn.pipelines.heads.signature import Signature, computed_outputs, declared_outputs
from vkmnn.pipelines.image_processor import ImageProcessor
from vkmnn.pipelines.networks import PROBE, Loaded, input_of, probed_outputs
from vkmnn.pipelines.options import Options
from vkmnn.pipelines.placing import Fit


def signature_of(
    loaded: Loaded, options: Options, classes: int, enough: Callable[[Signature], bool]
) -> Signature:
    """Return the signature of a network.

    If the declared shapes are not enough and are dynamic, the model is run once on a black image.

    Args:
        loaded: the network.
        options: device and image size of the run.
        classes: the number of class names in files or options; 0 if unknown.
        enough: returns whether the declared outputs suffice.
    """
    size = options.size or input_of(loaded).size
    properties = loaded.about.properties
    outputs = declared_outputs(loaded.outputs)
    declared = Signature(outputs, size, classes, properties)
    is_open = len(outputs) < len(loaded.outputs) or any(one.is_open for one in outputs)
    if enough(declared) or not is_open:
        return declared
    try:
        computed = probed_outputs(loaded, ImageProcessor(Fit("stretch", size)), options)
    except VkmnnError:  # the network rejects the guessed size: the declared shapes must do
        return declared
    return Signature(computed_outputs(computed), size or PROBE, classes, properties)
