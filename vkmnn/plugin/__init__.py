"""The API for plug-ins: operators, kernels, passes, formats and backends.

An operator is registered by decorators, in any module that is loaded as a plug-in: its attributes
(`op_type`), the shape of its output (`size_computer`), its behaviour along axes (`axes_of`), its
computation (`cpu_execution`), its execution on a device (`vulkan_execution`, or `geometry` for data
movement), and its ONNX node (`converter`). vkmnn's own operators use the same decorators;
docs/extending/operator.md has an example.
"""

from __future__ import annotations

from vkmnn.converter import front_ends as _front_ends  # noqa: F401 - so that neither these
from vkmnn.converter import native as _native  # noqa: F401 - nor this look like a plug-in's
from vkmnn.converter.front_end import Conversion, FrontEnd, front_end
from vkmnn.converter.onnx import NodeContext, UnsupportedCaseError, converter
from vkmnn.converter.passes import GraphIndex, IndexedPass, NoMatch, Pass, PatternPass
from vkmnn.converter.passes.base import merged_source
from vkmnn.converter.passes.registered import BEGIN, END, graph_pass
from vkmnn.converter.tflite.custom import reads_custom
from vkmnn.core.backend import Backend, Segment, Timing
from vkmnn.core.backends import backend
from vkmnn.core.execution import Command, Execution, Layouts, Rejection
from vkmnn.core.kernels import create as create_execution
from vkmnn.core.tensor import Tensor
from vkmnn.cpu_fallback import cpu_execution, placed_execution, run_op
from vkmnn.cpu_fallback.custom import custom_execution
from vkmnn.cpu_fallback.kernel import CpuKernel
from vkmnn.cpu_fallback.registry import AnyArray, Inputs, optional, required, widen
from vkmnn.cpu_fallback.scratch import Memory, Storage
from vkmnn.errors import (
    ConversionError,
    InvalidInputError,
    ModelError,
    ModelFileError,
    PluginError,
    ShaderError,
    ShapeError,
    UnsupportedOpError,
    VkmnnError,
)
from vkmnn.geometry import GeometryContext, geometry
from vkmnn.ir import (
    Activation,
    DType,
    Graph,
    Layout,
    Op,
    OpAttrs,
    Region,
    TensorInfo,
    View,
    op_type,
    ops,
)
from vkmnn.ir.custom import CustomAttrs
from vkmnn.plugin.check import check_registrations
from vkmnn.plugin.kernels import kernel, priorities
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.runtime.shader import Shader
from vkmnn.shape import axes, size_computer
from vkmnn.shape.axes import axes_of, elementwise, elementwise_same_shape
from vkmnn.shape.common import (
    Infos,
    Outputs,
    Shape,
    Values,
    broadcast_shapes,
    content_of,
    dtype_of,
    has_input,
    info_of,
    int_list,
    int_scalar,
    like_first_input,
    normalize_axes,
    normalize_axis,
    same_dtype,
    same_shape,
    shape_of,
)
from vkmnn.shape.custom import custom_op
from vkmnn.shape.symbolic import Facts, Found, shape_rule, value_rule
from vkmnn.vulkan.activation import activation_spec
from vkmnn.vulkan.encoder import VulkanEncoder, ceil_div
from vkmnn.vulkan.execution import VulkanExecution, vulkan_execution
from vkmnn.vulkan.executions import load_all as _load_all
from vkmnn.vulkan.float_rules import FloatRule
from vkmnn.vulkan.indexing import operands, row_strides
from vkmnn.vulkan.storage import kernel_dtype, pack_nc4hw4, reject_integers, vec4_count

_load_all()  # so that a plug-in cannot take the name of an execution that is imported later

__all__ = [
    "BEGIN",
    "END",
    "Activation",
    "AnyArray",
    "Backend",
    "Command",
    "Conversion",
    "ConversionError",
    "CpuKernel",
    "CustomAttrs",
    "DType",
    "DeviceInfo",
    "Execution",
    "Facts",
    "FloatRule",
    "Found",
    "FrontEnd",
    "GeometryContext",
    "Graph",
    "GraphIndex",
    "IndexedPass",
    "Infos",
    "Inputs",
    "InvalidInputError",
    "Layout",
    "Layouts",
    "Memory",
    "ModelError",
    "ModelFileError",
    "NoMatch",
    "NodeContext",
    "Op",
    "OpAttrs",
    "Outputs",
    "Pass",
    "PatternPass",
    "PluginError",
    "Region",
    "Rejection",
    "Segment",
    "Shader",
    "ShaderError",
    "Shape",
    "ShapeError",
    "Storage",
    "Tensor",
    "TensorInfo",
    "Timing",
    "UnsupportedCaseError",
    "UnsupportedOpError",
    "Values",
    "View",
    "VkmnnError",
    "VulkanEncoder",
    "VulkanExecution",
    "activation_spec",
    "axes",
    "axes_of",
    "backend",
    "broadcast_shapes",
    "ceil_div",
    "check_registrations",
    "content_of",
    "converter",
    "cpu_execution",
    "create_execution",
    "custom_execution",
    "custom_op",
    "dtype_of",
    "elementwise",
    "elementwise_same_shape",
    "front_end",
    "geometry",
    "graph_pass",
    "has_input",
    "info_of",
    "int_list",
    "int_scalar",
    "kernel",
    "kernel_dtype",
    "like_first_input",
    "merged_source",
    "normalize_axes",
    "normalize_axis",
    "op_type",
    "operands",
    "ops",
    "optional",
    "pack_nc4hw4",
    "placed_execution",
    "priorities",
    "reads_custom",
    "reject_integers",
    "required",
    "row_strides",
    "run_op",
    "same_dtype",
    "same_shape",
    "shape_of",
    "shape_rule",
    "size_computer",
    "value_rule",
    "vec4_count",
    "vulkan_execution",
    "widen",
]
