"""A module of PyTorch's, or its program, that runs in a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vkmnn.converter.torch import NEXT, Program, Script, need_torch
from vkmnn.errors import ConversionError, InvalidInputError
from vkmnn.inference_session import InferenceSession
from vkmnn.torch.tensors import as_array, as_tensor


class CompiledModule:
    """A module that runs on a Vulkan device, with tensors on the CPU as arguments and results.

    Attributes:
        session: the session that runs it.
    """

    def __init__(self, session: InferenceSession, program: Any) -> None:
        self.session = session
        self._program = program
        self._torch = need_torch("a module of PyTorch's")
        self._inputs = [info.name for info in session.get_inputs()]
        self._outputs = [info.name for info in session.get_outputs()]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module.

        Args:
            args: what the module takes, tensors of the sizes that it was compiled for.
            kwargs: the same, by name.

        Returns:
            What the module returns.

        Raises:
            InvalidInputError: arguments of another structure, type or shape.
        """
        fed = self._fed(args, kwargs)
        feeds = {
            name: as_array(self._torch, value)
            for name, value in zip(self._inputs, fed, strict=True)
        }
        made = [as_tensor(self._torch, one) for one in self.session.run(None, feeds)]
        given = dict(zip(feeds, fed, strict=True))
        for output, value in zip(self._outputs, made, strict=True):
            name = output.removesuffix(NEXT)
            if name != output and name in given:  # an input that the module writes
                with self._torch.no_grad():
                    given[name].copy_(value)
        return self._returned(made)

    def reset_state(self) -> None:
        """Reset buffers that the module writes to their values at compilation."""
        self.session.reset_state()

    def close(self) -> None:
        """Release the device's memory."""
        self.session.close()

    def _fed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the values for the session's inputs, in their order."""
        count = len(self._inputs)
        if self._program is None:
            if kwargs or len(args) != count:
                raise InvalidInputError(f"the module was compiled with {count} arguments, by place")
            return list(args)
        tree = self._torch.utils._pytree
        flat, spec = tree.tree_flatten((args, dict(kwargs)))
        if spec != self._program.call_spec.in_spec:
            raise InvalidInputError(
                f"the module was compiled with other arguments: {self._program.call_spec.in_spec}",
                hint="pass as many, by place or by name as when it was compiled",
            )
        signature = self._program.graph_signature
        specs = [one for one in signature.input_specs if one.kind.name == "USER_INPUT"]
        found = []
        for place, (one, value) in enumerate(zip(specs, flat, strict=True)):
            if not hasattr(one.arg, "value"):
                found.append(value)
            elif value != one.arg.value:
                raise InvalidInputError(
                    f"argument {place} is {value!r}; the module was compiled with "
                    f"{one.arg.value!r}",
                    hint="compile it again: arguments that are not tensors are fixed",
                )
        return found

    def _returned(self, made: list[Any]) -> Any:
        if self._program is None:
            return made[0] if len(made) == 1 else tuple(made)
        rest = iter(made)
        signature = self._program.graph_signature
        specs = [one.arg for one in signature.output_specs if one.kind.name == "USER_OUTPUT"]
        flat = [one.value if hasattr(one, "value") else next(rest) for one in specs]
        return self._torch.utils._pytree.tree_unflatten(flat, self._program.call_spec.out_spec)


def compile(
    module: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    **options: Any,
) -> CompiledModule:
    """Compile a PyTorch module for a Vulkan device.

    Args:
        module: a `torch.nn.Module` in eval mode, or a `torch.jit.ScriptModule`.
        args: example arguments; their sizes are fixed except for `dynamic_shapes`.
        kwargs: example arguments by name.
        dynamic_shapes: dynamic sizes, as for `torch.export.export`.
        options: options of `InferenceSession`: device, precision, and so on.

    Raises:
        MissingExtraError: `torch` or `onnxscript` is not installed.
        InvalidInputError: it is not a module, or in the mode for training.
        ConversionError: PyTorch cannot export it.
    """
    torch = need_torch("vkmnn.torch.compile")
    if not isinstance(args, tuple):
        raise InvalidInputError(
            f"args is a tuple of arguments, not {type(args).__name__}", hint="compile(module, (x,))"
        )
    if isinstance(module, torch.jit.ScriptModule):
        if kwargs or dynamic_shapes:
            raise InvalidInputError(
                "a ScriptModule takes arguments by place, of fixed sizes",
                hint="compile the module that it was made from",
            )
        script: Any = Script(module, args=args)
        return CompiledModule(InferenceSession(script, **options), None)
    if not isinstance(module, torch.nn.Module):
        raise InvalidInputError(
            f"a torch.nn.Module is compiled, not {type(module).__name__}",
            hint="vkmnn.InferenceSession takes programs of torch.export, and files",
        )
    if module.training:
        raise InvalidInputError("the module is in the mode for training", hint="module.eval()")
    try:
        with torch.no_grad():
            program = torch.export.export(
                module, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes
            )
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [""]
        raise ConversionError(
            f"torch.export refuses the module: {type(error).__name__}: {lines[0][:300]}",
            hint="the error below this one says where; see torch.export's documentation",
        ) from error
    source: Any = Program(program, type(module).__name__)
    return CompiledModule(InferenceSession(source, **options), program)
