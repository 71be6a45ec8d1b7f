"""Checks of a plan against the device's limits before anything is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import truediv

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.runtime.pipeline import max_range_bytes, missing
from vkmnn.vulkan.recording import Dispatch, Recording, SpecializedShader
from vkmnn.vulkan.storage import FLOAT_BYTES, storage_bytes

PADDED = 4

PipelineKind = tuple["str | None", list[int]]
"""Reason why a device cannot run a pipeline, and the bytes bound at each of its bindings."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A dispatch that exceeds a limit of the device.

    `tensor` is the one that it cannot bind, None if the dispatch has too many workgroups or the
    device cannot run its shader. `share` is the fraction of the tensor, or of the workgroups, that
    would fit; 1 if a smaller one would not help.
    """

    op: str
    reason: str
    share: float = 1.0
    tensor: Tensor | None = None


def find_faults(
    dispatches: Sequence[Dispatch],
    info: DeviceInfo,
    size_of: Callable[[Tensor, int], int] = lambda tensor, limit: storage_bytes(tensor),
    kinds: dict[SpecializedShader, PipelineKind] | None = None,
) -> Iterator[Fault]:
    """Yield the faults of a plan; a tensor may appear more than once.

    Args:
        dispatches: the recorded dispatches.
        info: the device.
        size_of: returns the bound bytes of a tensor up to a limit; the default does not know packed
            constants.
        kinds: results of earlier calls about pipelines on the device; new ones are added.
    """
    limits = info.limits
    max_x, max_y, max_z = limits.max_workgroup_count
    kinds = {} if kinds is None else kinds
    always = min(limits.max_storage_buffer_range, limits.max_texel_buffer_elements * 4)
    small: set[Tensor] = set()
    for dispatch in dispatches:
        known = kinds.get(dispatch.pipeline)
        if known is None:
            shader = dispatch.shader
            known = kinds[dispatch.pipeline] = (
                missing(shader, info, dispatch.spec),
                [max_range_bytes(binding, limits) for binding in shader.bindings],
            )
        lacking, most = known
        if lacking:
            yield Fault(dispatch.label, lacking)
        x, y, z = dispatch.groups
        if x > max_x or y > max_y or z > max_z:
            share = min(map(truediv, limits.max_workgroup_count, dispatch.groups))
            yield Fault(
                dispatch.label,
                f"{dispatch.groups} workgroups are more than the {limits.max_workgroup_count} "
                "that the device dispatches at once",
                share,
            )
        for tensor, limit in zip(dispatch.tensors, most, strict=True):
            if tensor in small:
                continue
            size = size_of(tensor, limit)
            if size <= always:
                small.add(tensor)
                continue
            if size > limit:
                reason = (
                    f"'{tensor.name}' takes {size} bytes, more than the {limit} that the device "
                    "binds as one buffer"
                )
                yield Fault(dispatch.label, reason, limit / size, tensor)


def packed_bytes(recording: Recording, tensor: Tensor, limit: int) -> int:
    """Return the bytes that are bound; for constants, a number beyond `limit` if they exceed it."""
    packed = recording.packed.get(tensor)
    if packed is None:
        return storage_bytes(tensor)
    about = packed.source.size * FLOAT_BYTES[packed.element]
    # Packing rounds channels up to blocks, and writes some kernels' weights out at length.
    return about if PADDED * about <= limit else packed.array(tensor.name).nbytes
