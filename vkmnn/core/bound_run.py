"""The result of `InferenceSession.bind`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vkmnn.base.closing import Closing
from vkmnn.core.bound import Bound
from vkmnn.core.device_tensor import DeviceTensor
from vkmnn.core.session import Session

if TYPE_CHECKING:
    pass


class BoundRun(Closing):
    """A network with fixed input and output tensors; call it to run it.

    It keeps its plan until it, or the session, is closed; its tensors stay.
    """

    def __init__(self, session: Session, bound: Bound) -> None:
        self._session = session
        self._bound = bound

    @property
    def inputs(self) -> Mapping[str, DeviceTensor]:
        """Inputs of a run by name; write to them before it."""
        return self._bound.inputs

    @property
    def outputs(self) -> Mapping[str, DeviceTensor]:
        """Outputs of a run by name."""
        return self._bound.outputs

    @property
    def copies(self) -> bool:
        """Whether runs copy: the network is not one plan on the device."""
        return self._bound.copies

    def run(self) -> Mapping[str, DeviceTensor]:
        """Run the network once, and return `outputs`.

        Raises:
            InvalidInputError: it, or the session, has been closed; an index that is outside its
                range, or another value that a kernel cannot compute with.
            DeviceLostError: the device does not work any more; bind again on a new one.
        """
        self._session.run_bound(self._bound)
        return self._bound.outputs

    __call__ = run

    def __repr__(self) -> str:
        """Return the bound tensors."""
        ins, outs = (
            ", ".join(f"{name} {list(one.shape)}" for name, one in tensors.items())
            for tensors in (self.inputs, self.outputs)
        )
        return f"<vkmnn.BoundRun ({ins}) -> ({outs})>"

    def close(self) -> None:
        """Release its part of the plan; the tensors stay."""
        self._session.detach(self._bound)
