"""The Vulkan backend: executions, layouts, memory plan, command buffers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from math import inf, prod
from typing import Any

from vkmnn.base.cache_files import cache_dir
from vkmnn.base.elements import FLOATS
from vkmnn.base.memo import Memo
from vkmnn.core.backend import (
    Backend,
    OpsRejectedError,
    Segment,
    TensorPurpose,
    TunablePlan,
    Tuning,
)
from vkmnn.core.device_tensor import DeviceTensor
from vkmnn.core.execution import Command, Execution, Rejection
from vkmnn.core.kernels import KERNELS, Make, create
from vkmnn.core.tensor import Tensor, Usage
from vkmnn.errors import (
    DeviceError,
    Float16OverflowError,
    InvalidInputError,
    LateFlagError,
    VoidRunError,
    unexpected_error,
)
from vkmnn.ir import OP_TYPES, Array, DType, Op, PackedForm
from vkmnn.ir.alike import MAX_ALIKE
from vkmnn.runtime import environment
from vkmnn.runtime.device import Device, retire_unwanted
from vkmnn.runtime.gate import Visit
from vkmnn.runtime.memory import MemoryKind
from vkmnn.runtime.pipeline import Pipeline
from vkmnn.runtime.pipeline_store import KEPT_PIPELINES
from vkmnn.runtime.shader import Shader
from vkmnn.shaders.library import prepare as compile_shaders
from vkmnn.vulkan import images
from vkmnn.vulkan.bindable import Fault, PipelineKind, find_faults
from vkmnn.vulkan.choice import Choice, Chooser, Preferences
from vkmnn.vulkan.device_rules import is_gpu
from vkmnn.vulkan.device_storage import new_tensor
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.execution import Prepared, VulkanExecution
from vkmnn.vulkan.executions import execution_of
from vkmnn.vulkan.flags import by_flags
from vkmnn.vulkan.forms import Forms
from vkmnn.vulkan.fusion.joined_ends import join_ends
from vkmnn.vulkan.fusion.normed_pairs import NormedPairs
from vkmnn.vulkan.fusion.pairs import FusedPairs
from vkmnn.vulkan.fusion.pooled_pairs import PooledPairs
from vkmnn.vulkan.fusion.separable_pairs import SeparablePairs
from vkmnn.vulkan.images.forms import image_record
from vkmnn.vulkan.images.place import image_size
from vkmnn.vulkan.layouts import assign_layouts
from vkmnn.vulkan.overflow import Reporting, origins
from vkmnn.vulkan.plan.alike import AlikeDispatches, op_key
from vkmnn.vulkan.plan.foreseen import Foreseen
from vkmnn.vulkan.plan.memory import PlanMemory, constants_of, plan_memory
from vkmnn.vulkan.plan.plan_recorder import PlanRecorder, pipelines_used
from vkmnn.vulkan.plan.schedule import schedule
from vkmnn.vulkan.recording import Recording, Spec, SpecializedShader
from vkmnn.vulkan.settings import BackendSettings
from vkmnn.vulkan.splitting.splitter import Divider
from vkmnn.vulkan.storage import (
    FLOAT_BYTES,
    beyond_range,
    kernel_dtype,
    storage_bytes,
)
from vkmnn.vulkan.tuning import TunableBackend, TuningFile, tune

_log = logging.getLogger(__name__)

PAIR_RULES = (SeparablePairs(), NormedPairs(), PooledPairs())


class VulkanBackend(TunableBackend):
    """A session's use of a Vulkan device.

    Args:
        device: an opened device; shared, not closed with the backend.
        settings: options of planning and running.
        chooser: decides between equivalent kernels; None follows `VKMNN_TUNE`.
        foreseen: pipelines that are being built for the first plan; closed with the backend.
        prove: called with the device and the type of each op until it returns True: it settles
            what kernels may use of the device (`proof.py`).
        changes: fields of `settings` with other values.
    """

    type = "VULKAN"
    uses_geometry = True
    records = True

    def __init__(
        self,
        device: Device,
        settings: BackendSettings | None = None,
        *,
        chooser: Chooser | None = None,
        foreseen: Foreseen | None = None,
        prove: Callable[[Device, str], bool] | None = None,
        **changes: Any,
    ) -> None:
        self.device = device
        self._prove = prove
        self._foreseen = foreseen
        settings = replace(settings or BackendSettings(), **changes)
        self.settings = replace(
            settings,
            tuning=settings.tuning or environment.tune(),
            storage=settings.storage or environment.storage(),
            flags=environment.flags() == "force" if settings.flags is None else settings.flags,
        )
        self.choices: list[Choice] = []
        self._chooser = chooser or Preferences(
            self._tuning_file().load() if self.settings.tuning != "off" else {}
        )
        storage = self.settings.storage or environment.storage()
        self._images = image_size(device.info, storage, settings.element)
        if self._images:
            images.load_all()
        self._constants = constants_of(device)
        self._known: Memo[Hashable, Any] = Memo(MAX_ALIKE)
        self._forms = Forms()
        self._prepared: Memo[Hashable, Prepared] = Memo(MAX_ALIKE)
        self._pipelines: dict[SpecializedShader, Pipeline] = {}
        self._kinds: dict[SpecializedShader, PipelineKind] = {}
        heaps = {item.heap: item.heap_bytes for item in device.info.memory_types}
        width = FLOAT_BYTES[settings.element]
        self._max_elements = sum(heaps.values()) // width if heaps else inf

    def on_create(
        self, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> Execution | Rejection:
        """Return an execution, or the reason the op cannot run on this device."""
        if self._prove is not None and self._prove(self.device, op.type):
            self._prove = None
        own = execution_of(op.type)
        if own is None and not len(KERNELS):
            return Rejection(f"no Vulkan execution for {op.type}")
        content = OP_TYPES[op.type].content
        for index, tensor in enumerate(inputs):
            if tensor is None or tensor.value is None or index in content:
                continue
            value = beyond_range(tensor.value)
            if value is not None:
                return Rejection(f"constant '{tensor.name}' holds {value}, outside int32")
        if own is None or not own.repeatable or len(KERNELS):
            return self._create(own, op, inputs, outputs)
        key = op_key(op, inputs, outputs)
        prepared = self._prepared.get(key)
        if prepared is not None:
            return prepared.execution(op, inputs, outputs)
        made = self._create(own, op, inputs, outputs)
        if isinstance(made, VulkanExecution):
            self._prepared.keep(key, made.as_prepared())
        return made

    def _create(
        self,
        own: Make | None,
        op: Op,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
    ) -> Execution | Rejection:
        for tensor in (*inputs, *outputs):
            if tensor is not None and not self.holds(tensor.dtype):
                return Rejection(f"{tensor.dtype.value} tensors cannot be stored on the device")
            if tensor is not None and prod(tensor.shape) > self._max_elements:
                return Rejection(f"'{tensor.name}' is larger than all of the device's memory")
        made = create(self.type, own, op, inputs, outputs, self.device.info)
        return made or Rejection(f"no Vulkan execution for {op.type}")

    def on_resize_begin(self, commands: Sequence[Command]) -> list[Command]:
        """Assign layouts, insert conversions, and split tensors that are too large to bind."""
        read_elsewhere = {
            t.name for c in commands if c.backend != self.type for t in c.inputs if t is not None
        }
        consumed = {t.name for c in commands for t in c.inputs if t is not None}
        outputs = {
            out.name
            for c in commands
            for out in c.outputs
            if out.name in read_elsewhere or out.usage is Usage.OUTPUT or out.name not in consumed
        }
        return assign_layouts(
            commands,
            self.type,
            frozenset(outputs),
            self._must_create,
            element=self.settings.element,
            narrow_inputs=self.settings.narrow_inputs,
            full=self.settings.full,
            divider=Divider(
                self.type,
                self.on_create,
                self.device.info,
                lambda: self.new_encoder(_constant_bytes([commands])),
            ),
            images=self._images,
        )

    def _must_create(
        self, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> Execution:
        execution = self.on_create(op, inputs, outputs)
        if isinstance(execution, Rejection):
            raise DeviceError(
                f"cannot run the plan's auxiliary dispatches: {execution.reason}",
                op=op.type,
                node=op.name,
            )
        return execution

    def on_resize_end(
        self,
        segments: Sequence[Sequence[Command]],
        kept: Mapping[str, Tensor],
        inputs: Mapping[str, Tensor],
    ) -> list[Segment]:
        """Collect dispatches, place tensors, record one command buffer per segment."""
        recording, ends = self.encode_in_order(segments)
        watch, reporting = self.settings.overflows, None
        if watch is not None and FLOATS[self.settings.element].overflows:
            reporting = Reporting(self.device, origins(segments), watch)
        runs = recording
        if self._uses_flags():
            runs = by_flags(recording, self.device.info, reporting)
        used = pipelines_used(runs, reporting)
        place = partial(self.place, recording, list(kept.values()), list(inputs.values()))
        memory = self._built(used, place)
        self._reject_constants(segments, recording, memory)
        _log.debug(
            "plan: %d dispatches, %d activation bytes (lower bound %d)",
            len(recording.dispatches),
            memory.activation_bytes,
            memory.activation_lower_bound,
        )
        pipelines = {name: self._pipelines[name] for name in used}
        recorder = PlanRecorder(
            self.device,
            runs,
            memory,
            pipelines,
            self.settings.timestamps,
            self.settings.apart,
            reporting,
        )
        recorder.replays = self.settings.replays
        result: list[Segment] = []
        uploaded: set[str] = set()
        for commands, first, end in zip(segments, [0, *ends], ends, strict=False):
            produced = {out.name for command in commands for out in command.outputs}
            downloads = [tensor for name, tensor in kept.items() if name in produced]
            uploads = {
                tensor.name: tensor
                for command in commands
                for tensor in command.inputs
                if tensor is not None and tensor.name in inputs and tensor.name not in uploaded
            }
            uploaded.update(uploads)
            result.append(recorder.segment(first, end, list(uploads.values()), downloads))
        return result

    def _uses_flags(self) -> bool:
        """Whether dispatches wait by flags.

        Not where dispatches are timed, and not where the validation layer misses the barriers.
        """
        settings, device = self.settings, self.device
        if not settings.flags or not device.trusts_flags or not settings.replays:
            return False
        ordered = settings.timestamps or settings.apart or device.info.limits.whole_buffers
        return not ordered and (not device.validation or environment.flags() == "force")

    def _built(
        self,
        used: Mapping[SpecializedShader, tuple[Shader, Spec]],
        place: Callable[[], PlanMemory],
    ) -> PlanMemory:
        """Build the missing pipelines while memory is placed; return the memory."""
        if len(self._pipelines) > KEPT_PIPELINES:
            self._pipelines = {}
            self._kinds = {}
        new = [one for one in used.items() if one[0] not in self._pipelines]
        if not new:
            return place()
        compile_shaders(shader for _, (shader, _) in new)
        # The longest code first, so that the last one built is not waited for alone.
        new.sort(key=lambda one: len(one[1][0].spirv()), reverse=True)
        missing = dict(new)
        # The driver compiles while the constants are packed.
        with self.device.start_pipelines(missing.values(), warm_up=True) as batch:
            memory = place()
            made = batch.result(self.settings.progress)
        self._pipelines.update(zip(missing, made, strict=True))
        foreseen, self._foreseen = self._foreseen, None
        if foreseen is not None:
            foreseen.settle(list(missing.values()))
        return memory

    def _reject_constants(
        self, segments: Sequence[Sequence[Command]], recording: Recording, memory: PlanMemory
    ) -> None:
        """Reject the ops whose constants, once packed, are too large."""
        info = self.device.info
        largest = max((storage.range.nbytes for storage in memory.constants), default=0)
        if largest <= info.limits.max_storage_buffer_range:
            return

        def size_of(tensor: Tensor, most: int) -> int:
            packed = tensor in recording.packed
            return memory.ranges[tensor].nbytes if packed else storage_bytes(tensor)

        try:
            _reject_faulty(segments, find_faults(recording.dispatches, info, size_of))
        except OpsRejectedError:
            memory.close()
            raise

    def encode_in_order(self, segments: Sequence[Sequence[Command]]) -> tuple[Recording, list[int]]:
        """Return the dispatches in running order, and the end of each segment.

        Raises:
            OpsRejectedError: the device cannot run some of them.
        """
        recording, ends = self.encode(segments)
        dispatches, info = recording.dispatches, self.device.info
        # Repeated dispatches have the same faults as the first of their kind.
        first = [one for one in dispatches if not one.repeated]
        if any(find_faults(first, info, kinds=self._kinds)):
            _reject_faulty(segments, find_faults(dispatches, info))
        if is_gpu(self.device.info):
            # A CPU device runs dispatches sequentially anyway.
            schedule(recording, ends)
        self.choices = recording.choices
        return recording, ends

    def encode(self, segments: Sequence[Sequence[Command]]) -> tuple[Recording, list[int]]:
        """Let the executions record; return the dispatches and the end of each segment."""
        encoder = self.new_encoder(_constant_bytes(segments))
        segments = join_ends(segments, encoder)
        alike = AlikeDispatches(encoder)
        pairs = FusedPairs(PAIR_RULES, segments, encoder)
        ends = []
        for commands in segments:
            for command in commands:
                execution = command.execution
                assert isinstance(execution, VulkanExecution)
                try:
                    if pairs.encode(command):
                        continue
                    encoder.begin(command.op.name, self._narrow(command))
                    record = image_record(command)
                    if record:
                        execution.bind(command.inputs, command.outputs)
                        record(execution, encoder)
                    else:
                        alike.encode(execution, command.inputs, command.outputs)
                except Exception as error:
                    op = command.op
                    raise unexpected_error(
                        error, "planning it", op=op.type, node=op.source or op.name
                    ) from error
            ends.append(len(encoder.recording.dispatches))
        return encoder.recording, ends

    def _narrow(self, command: Command) -> Sequence[Tensor | None]:
        """Return the tensors of a command that may be narrow."""
        return (*command.inputs, *command.outputs) if self.settings.element != "f32" else ()

    def new_encoder(self, weight_bytes: int) -> VulkanEncoder:
        """Return the encoder of a plan with about `weight_bytes` of constants."""
        return VulkanEncoder(
            self.device.info,
            self._chooser,
            weight_bytes=weight_bytes,
            known=self._known,
            spacious=self.settings.spacious,
            arithmetic=self.settings.arithmetic,
        )

    def place(
        self, recording: Recording, kept: Sequence[Tensor], provided: Sequence[Tensor]
    ) -> PlanMemory:
        """Place every tensor of a plan in memory; for the arguments see `plan_memory`."""
        return plan_memory(
            self.device,
            self._constants,
            recording,
            kept,
            provided,
            self._forms,
            self.settings.stored_bytes,
            self.settings.eager,
        )

    def timed(self) -> VulkanBackend:
        """Return a backend that records timestamps and shares this one's constants."""
        if "timestamps" not in self.device.info.features:
            info = self.device.info
            other = "another device" if info.driver == "vulkan" else 'driver="vulkan"'
            raise InvalidInputError(
                f"{info.name} has no timestamps with the driver {info.driver}, so its ops cannot "
                "be "
                "timed",
                hint=f'profile with {other}, or with device="cpu"',
            )
        return self.sibling(timestamps=True)

    def timed_apart(self) -> VulkanBackend:
        """Return a timed backend whose dispatches never overlap, so that each is timed alone."""
        timed = self.timed()
        return timed.sibling(apart=True)

    def with_preferences(self, table: Mapping[str, str]) -> VulkanBackend:
        """Return a backend that prefers these kernels and shares this one's constants."""
        return self.sibling(chooser=Preferences(table))

    def sibling(
        self, device: Device | None = None, chooser: Chooser | None = None, **changes: Any
    ) -> VulkanBackend:
        """Return a backend that differs from this one only in the given settings.

        Args:
            device: another device, if this one is lost.
            chooser: decides between equivalent kernels.
            changes: fields of `settings` with other values.
        """
        made = VulkanBackend(
            device or self.device,
            self.settings,
            chooser=chooser or self._chooser,
            prove=self._prove,
            **changes,
        )
        made._forms = self._forms
        return made

    # --- tuning ----------------------------------------------------------------------------------

    @property
    def preferences(self) -> Mapping[str, str]:
        """The kernels measured to be fastest, by choice."""
        return self._chooser.table if isinstance(self._chooser, Preferences) else {}

    def suggest(self, tuned: Mapping[str, Mapping[str, str]]) -> None:
        """Accept measurements of a device like this one; its own take precedence."""
        found = (
            tuned.get(self._tuning_file().key) if tuned and self.settings.tuning != "off" else None
        )
        if found and isinstance(self._chooser, Preferences):
            self._chooser = Preferences({**found, **self._chooser.table})

    def offer(self, forms: Sequence[PackedForm]) -> None:
        """Take constants in these forms instead of packing them; see `Backend`."""
        self._forms.give(forms)

    def collect_forms(self) -> None:
        """Record packed constants from now on, for `packed_forms`."""
        self._forms.collect(self.device.info.name)

    def packed_forms(self) -> list[PackedForm]:
        """Return the constants packed since `collect_forms`."""
        return self._forms.made

    def measured(self) -> tuple[str, Mapping[str, str]]:
        """Return the device's key, and the measurements of its plans' choices."""
        met = self._chooser.met if isinstance(self._chooser, Preferences) else {}
        return self._tuning_file().key, met

    @property
    def tunes_new_plans(self) -> bool:
        """Whether `VKMNN_TUNE` requests tuning and the device can measure."""
        return self.settings.tuning == "on" and "timestamps" in self.device.info.features

    def tune(
        self,
        make_plan: Callable[[Backend], TunablePlan],
        feeds: Mapping[str, Array],
        runs: int,
        progress: Callable[[int, int], object] | None,
        limit_s: float = inf,
    ) -> Tuning:
        """Measure the kernels a plan could use; save the faster ones to disk."""
        table, tuning = tune(self, make_plan, feeds, runs, progress, limit_s)
        if tuning.kept:
            before = self.preferences
            self._chooser = Preferences(table)
            if self.settings.tuning != "off":
                # Others may have re-measured known choices in the meantime.
                self._tuning_file().store(
                    {key: taken for key, taken in table.items() if before.get(key) != taken}
                )
        return tuning

    def choices_of(
        self, make_plan: Callable[[Backend], TunablePlan], table: Mapping[str, str]
    ) -> list[Choice]:
        """Return the choices that arise in a plan when these kernels are preferred."""
        backend = self.with_preferences(table)
        make_plan(backend).close()
        return backend.choices

    def _tuning_file(self) -> TuningFile:
        return TuningFile(cache_dir(), self.device.info)

    def after(self, error: VoidRunError) -> Backend | None:
        if not isinstance(error, LateFlagError) or not self.settings.flags:
            return super().after(error)
        self.device.trusts_flags = False
        self.device.counts["late_flags"] += 1
        _log.warning(
            "%s: %s; barriers order them from now on", self.device.info.name, error.message
        )
        return self.sibling(flags=False)

    def widened(self, error: Float16OverflowError) -> VulkanBackend | None:
        """Return a backend that keeps overflowed tensors in float32; see `Backend`."""
        settings = self.settings
        watch = settings.overflows if FLOATS[settings.element].overflows else None
        full = watch.widened(error, settings.full) if watch is not None else None
        if full is None:
            return None
        return self.sibling(full=full) if full else self.sibling(element="f32", arithmetic="f32")

    def reopened(self) -> VulkanBackend:
        return self.sibling(self.device.successor())

    def holds(self, dtype: DType) -> bool:
        return kernel_dtype(dtype) is not None

    def new_tensor(
        self, shape: tuple[int, ...], dtype: DType, purpose: TensorPurpose = "device"
    ) -> DeviceTensor:
        """Return a tensor of zeros in its own memory; see `Backend`."""
        if not self.holds(dtype):
            return super().new_tensor(shape, dtype, purpose)
        return new_tensor(self.device, shape, dtype, MemoryKind(purpose))

    def counters(self) -> dict[str, int]:
        """Return the device's counters, shared by all its users; see `Backend`."""
        return dict(self.device.counts)

    def trim(self) -> None:
        """Free the device's staging memory, and pipelines that no plan uses."""
        self._pipelines = {}
        self.device.trim()

    @property
    def lost(self) -> bool:
        """Whether the device is lost; see `Backend`."""
        return self.device.lost is not None

    def use(self) -> AbstractContextManager[None]:
        return Visit(self.device.gate)

    def close(self) -> None:
        """Free the resources of a lost device; plans must be closed before."""
        if self._foreseen is not None:
            self._foreseen.close()
        retire_unwanted()


def _reject_faulty(segments: Sequence[Sequence[Command]], faults: Iterable[Fault]) -> None:
    """Reject the network ops whose dispatches the device cannot run.

    Raises:
        OpsRejectedError: there are some.
    """
    reasons = {fault.op: fault.reason for fault in faults}
    if reasons:
        owners = {c.op.name: c.owner or c.op.name for commands in segments for c in commands}
        raise OpsRejectedError({owners[name]: reason for name, reason in reasons.items()})


def _constant_bytes(segments: Sequence[Sequence[Command]]) -> int:
    """Return the total size in bytes of all commands' constants, each counted once."""
    constants = {
        t.name: t
        for commands in segments
        for command in commands
        for t in command.inputs
        if t is not None and t.value is not None
    }
    return sum(storage_bytes(tensor) for tensor in constants.values())
