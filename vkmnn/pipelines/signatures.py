"""What is known of a network's outputs before its first run."""

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
    """Return what a network returns.

    Where that is not enough, and the model leaves shapes open, it is run once on a black picture.

    Args:
        loaded: the network.
        options: where it would run, and on which size.
        classes: how many classes files or options name; 0 for unknown.
        enough: tells whether what the model declares says what is wanted.
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
    except VkmnnError:  # it does not take the guessed size: what is declared has to do
        return declared
    return Signature(computed_outputs(computed), size or PROBE, classes, properties)
