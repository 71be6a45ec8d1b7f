"""Upgrade of older networks to layers of today's form."""

from __future__ import annotations

from collections.abc import Sequence

from vkmnn.converter.caffe.schema import Message, message_class
from vkmnn.errors import ModelError

_TYPES = {
    "ABSVAL": "AbsVal", "ACCURACY": "Accuracy", "ARGMAX": "ArgMax", "BN": "BN", "BNLL": "BNLL",
    "CONCAT": "Concat", "CONTRASTIVE_LOSS": "ContrastiveLoss", "CONVOLUTION": "Convolution",
    "DATA": "Data", "DECONVOLUTION": "Deconvolution", "DENSE_IMAGE_DATA": "DenseImageData",
    "DROPOUT": "Dropout", "DUMMY_DATA": "DummyData", "ELTWISE": "Eltwise",
    "EUCLIDEAN_LOSS": "EuclideanLoss", "EXP": "Exp", "FLATTEN": "Flatten", "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output", "HINGE_LOSS": "HingeLoss", "IM2COL": "Im2col",
    "IMAGE_DATA": "ImageData", "INFOGAIN_LOSS": "InfogainLoss", "INNER_PRODUCT": "InnerProduct",
    "LRN": "LRN", "MEMORY_DATA": "MemoryData",
    "MULTINOMIAL_LOGISTIC_LOSS": "MultinomialLogisticLoss", "MVN": "MVN", "POOLING": "Pooling",
    "POWER": "Power", "PRELU": "PReLU", "PYTHON": "Python", "RELU": "ReLU", "SIGMOID": "Sigmoid",
    "SIGMOID_CROSS_ENTROPY_LOSS": "SigmoidCrossEntropyLoss", "SILENCE": "Silence",
    "SLICE": "Slice", "SOFTMAX": "Softmax", "SOFTMAX_LOSS": "SoftmaxWithLoss", "SPLIT": "Split",
    "TANH": "TanH", "THRESHOLD": "Threshold", "UPSAMPLE": "Upsample", "WINDOW_DATA": "WindowData",
}  # fmt: skip
"""Types by their name in V1LayerParameter; those of the oldest form are the same in lower case."""

_OLDEST = {kind.lower(): name for kind, name in _TYPES.items()} | {
    "conv": "Convolution", "pool": "Pooling", "innerproduct": "InnerProduct", "images": "ImageData",
}  # fmt: skip

_PADDING = "padding"


def layers_of(net: Message) -> list[Message]:
    """Return a network's layers, upgraded, with its inputs as layers before the others.

    Raises:
        ModelError: it mixes forms, or its inputs contradict each other.
    """
    if net.layer and net.layers:
        raise ModelError(
            "the network has both 'layer' and 'layers'",
            hint="use one of Caffe's two forms throughout",
        )
    old = list(net.layers)
    if any(layer.HasField("layer") for layer in old):
        layers = _from_oldest(old)
    else:
        layers = [_from_v1(layer) for layer in old] or list(net.layer)
    return [*_inputs(net), *layers]


def _inputs(net: Message) -> list[Message]:
    """Return an Input layer for inputs that old networks declare outside their layers."""
    if not net.input:
        return []
    shapes = [list(shape.dim) for shape in net.input_shape]
    dims = list(net.input_dim)
    if dims and not shapes:
        shapes = [dims[first : first + 4] for first in range(0, len(dims), 4)]
    if len(shapes) != len(net.input):
        raise ModelError(
            f"the network has {len(net.input)} inputs and shapes for {len(shapes)}",
            hint="state an input_shape, or four input_dim, for each input",
        )
    layer = message_class("LayerParameter")(name="input", type="Input", top=net.input)
    for shape in shapes:
        layer.input_param.shape.add(dim=shape)
    return [layer]


def _from_v1(old: Message) -> Message:
    layer = message_class("LayerParameter")(name=old.name, bottom=old.bottom, top=old.top)
    kind = old.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_number[old.type].name
    layer.type = _TYPES.get(kind, kind)
    for one in old.param:
        layer.param.add(name=one)
    known = layer.DESCRIPTOR.fields_by_name
    for field, value in old.ListFields():
        if field.name in ("include", "exclude"):
            getattr(layer, field.name).extend(value)
        elif field.name.endswith("_param") and field.name in known:
            getattr(layer, field.name).CopyFrom(value)
    return layer


def _from_oldest(connections: Sequence[Message]) -> list[Message]:
    """Upgrade connections of V0 layers; padding layers become pads of their readers."""
    pads = {
        top: connection
        for connection in connections
        if connection.layer.type == _PADDING
        for top in connection.top
    }
    found = []
    for connection in connections:
        if connection.layer.type == _PADDING:
            continue
        bottoms = list(connection.bottom)
        pad = connection.layer.pad
        for number, bottom in enumerate(bottoms):
            padding = pads.get(bottom)
            if padding is not None and padding.bottom:
                bottoms[number], pad = padding.bottom[0], padding.layer.pad
        found.append(_from_v0(connection.layer, bottoms, connection.top, pad))
    return found


def _from_v0(old: Message, bottoms: Sequence[str], tops: Sequence[str], pad: int) -> Message:
    layer = message_class("LayerParameter")(name=old.name, bottom=bottoms, top=tops)
    layer.type = _OLDEST.get(old.type, old.type)
    if layer.type == "Convolution":
        window = layer.convolution_param
        window.num_output, window.bias_term, window.group = old.num_output, old.biasterm, old.group
        window.kernel_size.append(old.kernelsize)
        window.stride.append(old.stride)
        window.pad.append(pad)
    elif layer.type == "InnerProduct":
        layer.inner_product_param.num_output = old.num_output
        layer.inner_product_param.bias_term = old.biasterm
    elif layer.type == "Pooling":
        pool = layer.pooling_param
        pool.pool, pool.kernel_size, pool.stride, pool.pad = (
            *(old.pool, old.kernelsize, old.stride, pad),
        )
    elif layer.type == "LRN":
        lrn = layer.lrn_param
        lrn.local_size, lrn.alpha, lrn.beta, lrn.k = old.local_size, old.alpha, old.beta, old.k
    elif layer.type == "Concat":
        layer.concat_param.concat_dim = old.concat_dim
    elif layer.type.endswith("Data"):
        layer.data_param.batch_size = old.batchsize
        layer.transform_param.crop_size = old.cropsize
    return layer
