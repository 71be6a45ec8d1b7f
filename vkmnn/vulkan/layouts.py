"""Assigns a form to every tensor and inserts ConvertTensor where producer and consumer differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from vkmnn.base.elements import FLOATS, FloatElement
from vkmnn.base.records import dataclass
from vkmnn.core.execution import Command, Execution, Layouts
from vkmnn.core.tensor import Tensor, Usage, are_plain
from vkmnn.errors import DeviceError
from vkmnn.ir import Layout, Op, TensorInfo
from vkmnn.ir.ops import ConvertTensorAttrs
from vkmnn.vulkan.copies.layout_change import is_reordered
from vkmnn.vulkan.execution import Prepared, VulkanExecution
from vkmnn.vulkan.float_rules import FloatRule, is_float
from vkmnn.vulkan.images.forms import image_layouts
from vkmnn.vulkan.images.place import MIN_RANK
from vkmnn.vulkan.quantized.code_readers import CodeReaders, code_readers
from vkmnn.vulkan.splitting.splitter import Divider, in_form

MakeExecution = Callable[[Op, Sequence[Tensor | None], Sequence[Tensor]], Execution]


class Form(NamedTuple):
    """How a tensor is stored on the device: its memory order, and how its floats are stored.

    `codes`: the shift of quantised values that take a byte each (`Tensor.codes`).
    """

    layout: Layout
    element: FloatElement
    codes: int | None = None

    def of(self, tensor: Tensor) -> Form:
        """Return the form for a tensor: only floats are narrow."""
        if self.element == "f32" or is_float(tensor):
            return self
        return Form(self.layout, "f32", self.codes)

    def __str__(self) -> str:
        codes = "" if self.codes is None else f".codes{self.codes}"
        element = "" if self.element == "f32" else f".{FLOATS[self.element].label}"
        return self.layout.value + element + codes


PLAIN = Form(Layout.NCHW, "f32")
_WIDE = {layout: Form(layout, "f32") for layout in Layout}


def assign_layouts(
    commands: Sequence[Command],
    backend: str,
    outputs: frozenset[str],
    make: MakeExecution,
    *,
    element: FloatElement = "f32",
    narrow_inputs: bool = False,
    divider: Divider | None = None,
    images: int = 0,
    full: frozenset[str] = frozenset(),
) -> list[Command]:
    """Return the commands with forms assigned, conversions inserted once per tensor and form.

    Commands of other backends, and tensors named in `outputs`, get plain order and float32.

    Args:
        commands: the plan, in running order.
        backend: the type of the backend that negotiates.
        outputs: tensors that the host reads.
        make: returns the execution of a ConvertTensor op.
        element: how floats are stored if executions allow it.
        narrow_inputs: the host's inputs are converted to that immediately.
        divider: splits the ops whose tensors are too large for the device.
        images: tensors are kept in images of at most this many texels along each axis, if ops have
            kernels for them; 0 keeps all in buffers.
        full: names of ops, and of tensors whose readers, keep float32 regardless.
    """
    plan = _Plan(backend, make, divider, images, element, full)
    narrow = element != "f32"
    if not images:
        plan.code_readers = code_readers(commands, backend, outputs, divider, element=element)
    followed: frozenset[str] = frozenset()
    if narrow and not images:
        followed = _followed_inputs(commands, backend, element, full)
    for command in commands:
        plan.owner = command.owner or command.op.name
        if narrow and (narrow_inputs or followed):
            plan.narrow_inputs(command, None if narrow_inputs else followed)
        if command.backend == backend:
            plan.add(command, outputs)
        else:
            command.inputs = [plan.wanted(tensor, PLAIN) for tensor in plan.now(command)]
            plan.commands.append(command)
    return plan.commands


@dataclass(slots=True)
class _Plan:
    """The commands so far, and the additional forms of their tensors.

    `current` maps tensors computed in another form than the host reads to their replacements,
    `constants` holds the constants that are uploaded narrow. `owner` names the current op.
    `code_readers` names the tensors that may be quantised values in bytes because every op that
    reads one accepts them, with the shift that suits these ops, if any. `stay_plain` holds the
    kinds of op that keep plain tensors plain. `element` and `full` are those of `assign_layouts`.
    """

    backend: str
    make: MakeExecution
    divider: Divider | None
    images: int
    element: FloatElement = "f32"
    full: frozenset[str] = frozenset()
    commands: list[Command] = field(default_factory=list)
    converted: dict[tuple[str, Form], Tensor] = field(default_factory=dict)
    current: dict[str, Tensor] = field(default_factory=dict)
    constants: dict[str, Tensor] = field(default_factory=dict)
    owner: str = ""
    code_readers: CodeReaders = field(default_factory=dict)
    stay_plain: set[Prepared] = field(default_factory=set)

    def now(self, command: Command) -> list[Tensor | None]:
        """Return the inputs of a command in their current form."""
        if not self.current:
            return list(command.inputs)
        return [None if t is None else self.current.get(t.name, t) for t in command.inputs]

    def narrow_inputs(self, command: Command, names: frozenset[str] | None) -> None:
        """Convert the network's inputs that a command reads: those of `names`, or all."""
        for tensor in command.inputs:
            if tensor is None or tensor.usage is not Usage.INPUT or not is_float(tensor):
                continue
            if names is not None and tensor.name not in names:
                continue
            if tensor.name not in self.current:
                self.current[tensor.name] = self.convert(tensor, Form(tensor.layout, self.element))

    def wanted(self, tensor: Tensor | None, form: Form) -> Tensor | None:
        """Return the tensor in a form; executions decide the layouts of constants."""
        if tensor is None:
            return None
        if form.element == "f32":  # the usual case first: it stays as it is
            if tensor.value is not None:
                return tensor
            if form_of(tensor) == form:
                return tensor
        form = form.of(tensor)
        if tensor.value is None:
            return tensor if form == form_of(tensor) else self.convert(tensor, form)
        if form.element == "f32":
            return tensor
        if tensor.name not in self.constants:
            self.constants[tensor.name] = replace(tensor, element=form.element)
        return self.constants[tensor.name]

    def convert(self, tensor: Tensor, form: Form, into: Tensor | None = None) -> Tensor:
        """Return the tensor in another form, converted by one command."""
        while (between := _between(tensor, form)) is not None:
            tensor = self.convert(tensor, between)
        key = (tensor.name, form)
        if key not in self.converted or into is not None:
            info = TensorInfo(f"{tensor.name}:{form}", tensor.dtype, tensor.info.shape)
            copy = into or replace(
                tensor,
                info=info,
                usage=Usage.NORMAL,
                layout=form.layout,
                element=form.element,
                codes=form.codes,
            )
            attrs = ConvertTensorAttrs(tensor.layout.value, form.layout.value)
            op = Op("ConvertTensor", f"{copy.name}:convert", [tensor.name], [copy.name], attrs)
            execution = self.make(op, [tensor], [copy])
            self.commands.append(
                Command(op, [tensor], [copy], execution, self.backend, owner=self.owner)
            )
            self.converted[key] = copy
        return self.converted[key]

    def parts(
        self,
        command: Command,
        inputs: Sequence[Tensor | None],
        wanted: Sequence[Form],
        made: Sequence[Form],
    ) -> list[Command]:
        """Return the commands that replace one; empty if it can stay."""
        if self.divider is None or self.divider.is_small([*inputs, *command.outputs]):
            return []
        read = [
            t and in_form(t, form.layout, form.of(t).element)
            for t, form in zip(inputs, wanted, strict=True)
        ]
        written = [
            replace(t, layout=form.layout, element=form.of(t).element)
            for t, form in zip(command.outputs, made, strict=True)
        ]
        return self.divider.divide(command, read, written)

    def take_codes(
        self,
        command: Command,
        inputs: Sequence[Tensor | None],
        wanted: list[Form],
        made: list[Form],
    ) -> None:
        """Use quantised forms for a command, if that needs no further dispatch."""
        execution = command.execution
        if not self.code_readers or not isinstance(execution, VulkanExecution):
            return
        seen, order = list(inputs), execution.code_layout
        for number, shift in execution.code_inputs().items():
            tensor = inputs[number] if number < len(inputs) else None
            if tensor is None or tensor.name not in self.code_readers:
                continue
            blocked = order is Layout.NC4HW4
            if blocked and tensor.codes is None and shift is not None and is_reordered(tensor):
                seen[number] = tensor = replace(tensor, layout=order, codes=shift)
            if tensor.codes is not None:
                wanted[number] = Form(order, "f32", tensor.codes)
        codes = None
        if command.outputs[0].name in self.code_readers:
            execution.bind(seen, command.outputs)
            codes = execution.made_codes(self.code_readers[command.outputs[0].name])
            if codes is not None:
                made[0] = Form(order, "f32", codes)
        reads = any(form.codes is not None for form in wanted)
        if codes is None and reads and execution.needs_codes():
            raise DeviceError(
                "quantised bytes cannot be converted to floats here",
                op=command.op.type,
                node=command.op.name,
                hint="report this, with the network",
            )

    def plain_kind(self, command: Command, inputs: Sequence[Tensor | None]) -> Prepared | None:
        """Return everything that determines a command's forms if its inputs are plain, else None.

        Whether floats may be narrow, or bytes, depends on more than that.
        """
        execution = command.execution
        if self.element != "f32" or self.images or self.code_readers:
            return None
        if not isinstance(execution, VulkanExecution):
            return None
        return execution.prepared if are_plain(inputs) else None

    def add(self, command: Command, read_by_host: frozenset[str]) -> None:
        """Add a command of the backend that negotiates, and the conversions it needs."""
        inputs = self.now(command)
        kind = self.plain_kind(command, inputs)
        if kind is not None and kind in self.stay_plain:
            command.inputs = inputs
            self.commands.append(command)
            return
        in_images = image_layouts(command, inputs, self.images) if self.images else None
        element = self.element
        if self.full and _is_full(command, self.full):
            element = "f32"
        wanted, made = _forms(command, inputs, element, in_images)
        self.take_codes(command, inputs, wanted, made)
        parts = self.parts(command, inputs, wanted, made) if in_images is None else []
        for part in parts:
            self.add(part, read_by_host)
        if parts:
            return
        command.inputs = [
            self.wanted(tensor, form) for tensor, form in zip(inputs, wanted, strict=True)
        ]
        plain = []
        for index, (out, form) in enumerate(zip(command.outputs, made, strict=True)):
            if form == PLAIN:
                continue
            form = form.of(out)
            if form == PLAIN:
                continue
            if out.name in read_by_host:
                # The host reads this name in plain order: compute another tensor and convert into
                # this one.
                beside = replace(
                    out,
                    info=replace(out.info, name=f"{out.name}:{form}"),
                    layout=form.layout,
                    element=form.element,
                )
                command.outputs[index] = beside
                plain.append((beside, out))
                self.converted[out.name, form] = beside
            else:
                out.take_form(*form)
        stays = not plain and command.inputs == inputs
        if stays and kind is not None and are_plain(command.outputs):
            self.stay_plain.add(kind)
        self.commands.append(command)
        for beside, out in plain:
            self.convert(beside, PLAIN, into=out)
            self.current[out.name] = beside


def _in_buffer(tensor: Tensor) -> Layout:
    """Return the layout of a tensor, or for an image the nearest layout of a buffer."""
    if tensor.layout is not Layout.IMAGE:
        return tensor.layout
    return Layout.NC4HW4 if len(tensor.shape) > MIN_RANK else Layout.NCHW


def form_of(tensor: Tensor) -> Form:
    """Return the form of a tensor."""
    return Form(tensor.layout, tensor.element, tensor.codes)


def _is_full(command: Command, full: frozenset[str]) -> bool:
    """Whether a command keeps float32: it, or one of its tensors, is named."""
    own = (command.owner or command.op.name, *command.op.inputs, *command.op.outputs)
    return not full.isdisjoint(own)


def _followed_inputs(
    commands: Sequence[Command], backend: str, element: FloatElement, full: frozenset[str]
) -> frozenset[str]:
    """Return the network's inputs that some ops read narrow, and that all others would follow.

    They are converted anyway, and the ops that follow benefit: the first normalisation of a
    network, for example, can then be fused with a product (`normed_pairs`). An input that is read
    in another order is converted to both at once.
    """
    taken: set[str] = set()
    others: set[str] = set()
    follow: set[str] = set()
    for command in commands:
        execution = command.execution
        read = [t for t in command.inputs if t is not None and t.usage is Usage.INPUT]
        if not any(is_float(tensor) for tensor in read):
            continue
        if (
            command.backend != backend
            or not isinstance(execution, VulkanExecution)
            or _is_full(command, full)
        ):
            others.update(tensor.name for tensor in read)
            continue
        execution.bind(command.inputs, command.outputs)
        wanted, layouts = execution.float_operands(element)[0], execution.layouts()[0]
        for tensor, narrow, layout in zip(command.inputs, wanted, layouts, strict=True):
            if tensor is None or tensor.usage is not Usage.INPUT:
                continue
            if layout is not Layout.NCHW:
                others.add(tensor.name)
            elif narrow:
                taken.add(tensor.name)
            elif execution.float_rule is FloatRule.FOLLOWS:
                follow.add(tensor.name)
            else:
                others.add(tensor.name)
    return frozenset((taken & follow) - others)


def _between(tensor: Tensor, after: Form) -> Form | None:
    """Return the intermediate form to or from an image, whose texels move unchanged."""
    before = form_of(tensor)
    if Layout.IMAGE not in (before.layout, after.layout):
        return None
    if before.layout is after.layout:
        return None if before == after else Form(_in_buffer(tensor), before.element)
    if before.element == after.element:
        return None
    into = after.layout is Layout.IMAGE
    return Form(before.layout, after.element) if into else Form(after.layout, before.element)


def _forms(
    command: Command,
    inputs: Sequence[Tensor | None],
    element: FloatElement,
    in_images: Layouts | None,
) -> tuple[list[Form], list[Form]]:
    """Return an execution's forms of its inputs and outputs.

    Executions do not know about images: to them, an image is channel-blocked.
    """
    execution = command.execution
    seen = [
        in_form(t, _in_buffer(t), t.element) if t is not None and t.layout is Layout.IMAGE else t
        for t in inputs
    ]
    execution.bind(seen, command.outputs)
    layouts = in_images or execution.layouts()
    if element == "f32":
        return [_WIDE[x] for x in layouts[0]], [_WIDE[y] for y in layouts[1]]
    assert isinstance(execution, VulkanExecution)
    widths: list[FloatElement] = ["f32", element]
    wanted, made = (
        [Form(layout, widths[narrow]) for layout, narrow in zip(*pair, strict=True)]
        for pair in zip(layouts, execution.float_operands(element), strict=True)
    )
    return wanted, made
