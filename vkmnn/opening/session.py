"""From a model to a session, and from a network to one."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from vkmnn.base.budget import Budget
from vkmnn.base.records import dataclass
from vkmnn.base.threads import Workers
from vkmnn.control_flow.branches import with_branches
from vkmnn.core.session import Session
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.errors import InvalidInputError
from vkmnn.opening.device import CPU_DEVICE, CpuInfo, OpenDevice, open_device, selector
from vkmnn.opening.fastest import is_fastest, open_fastest, say_what_may_be_faster
from vkmnn.opening.host_parts import host_opener, open_branches
from vkmnn.opening.load import load_network
from vkmnn.opening.network import InputShapes, Network, with_sizes
from vkmnn.opening.session_graph import saving, skipping, told_apart
from vkmnn.runtime import environment
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.schedule_config import (
    OnDeviceLost,
    Precision,
    ScheduleConfig,
    Unsupported,
    precision_name,
)
from vkmnn.sources.locate import model_file

if TYPE_CHECKING:
    from vkmnn.opening.network import Model


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A network opened on a device; `core` runs it."""

    core: Session
    device: DeviceInfo | CpuInfo
    precision: Precision

    def plan_ahead(self) -> None:
        """Plan now for the shapes that the model fixes or names, so that runs find a plan."""
        graph = self.core.graph
        if self.core.content_inputs:
            return
        for sizes in product(*graph.planned_sizes.values()):
            named = dict(zip(graph.planned_sizes, sizes, strict=True))
            inputs = [with_sizes(info, named) for info in graph.inputs]
            if all(info.is_static for info in inputs):
                self.core.resize({info.name: info.dims for info in inputs}, {})


def open_model(
    model: Model,
    config: ScheduleConfig,
    budget: Budget | None = None,
    *,
    as_inputs: Collection[str] = (),
    sizes: Mapping[str, int] | None = None,
    shapes: InputShapes | None = None,
    optimised: bool = True,
    unsupported: Unsupported = "cpu",
    keeps_states: bool = False,
) -> tuple[Network, OpenSession]:
    """Load a model and open a session on it; the driver is loaded at the same time.

    Args:
        model: as for `load_network`, like the other arguments that are not named here.
        config: how the session runs.
        budget: limits of loading.
        as_inputs: initializers that become inputs.
        sizes: sizes of named dimensions.
        shapes: shapes of inputs in place of the file's.
        optimised: False runs the network as the file has it.
        unsupported: handling of nodes that cannot be converted.
        keeps_states: as for `open_session`.

    Raises:
        VkmnnError: as `load_network` and `open_session`.
    """
    model = model_file(model)
    with Workers(1, "vkmnn-open") as workers:
        named = sorted((sizes or {}).items()), sorted((shapes or {}).items())
        settings = (sorted(as_inputs), *named, optimised, unsupported)
        device = workers.submit(open_device, config, _subject(model, config, settings))
        network = load_network(
            model,
            budget,
            as_inputs=as_inputs,
            sizes=sizes,
            shapes=shapes,
            optimised=optimised,
            unsupported=unsupported,
        )
        if selector(config) != CPU_DEVICE:
            # Meanwhile the other thread waits for drivers, which are loaded from disk.
            from vkmnn.vulkan import backend  # noqa: F401
        return network, open_session(network, config, device.result(), keeps_states)


def _subject(model: Model, config: ScheduleConfig, settings: object) -> str | None:
    """Return a name for a file's current version and its options; None for anything else."""
    if not isinstance(model, str | os.PathLike):
        return None
    try:
        status = Path(model).stat()
    except (OSError, ValueError):  # reading it reports the error
        return None
    how = (
        config.precision,
        config.on_overflow,
        config.storage,
        config.tuning_effort,
        config.memory,
        config.out_of_range,
    )
    return repr((os.path.realpath(model), status.st_size, status.st_mtime_ns, *how, settings))


def open_session(
    network: Network,
    config: ScheduleConfig,
    device: OpenDevice | None = None,
    keeps_states: bool = False,
) -> OpenSession:
    """Open a session on a network; plans are created once shapes are known.

    Args:
        network: the network to run.
        config: how.
        device: the result of `open_device` for this configuration; None to open it now.
        keeps_states: the caller hands the network's states on from one run to the next.

    Raises:
        DeviceNotFoundError: the requested device does not exist.
        InvalidInputError: the configuration holds an unknown value, or nobody keeps the states
            that the network has.
    """
    if network.graph.states and not keeps_states:
        raise InvalidInputError(
            "the network has variables that are kept between runs, which is not done here",
            hint="run it in a vkmnn.InferenceSession",
        )
    precision_name(config.precision)
    if config.on_device_lost not in get_args(OnDeviceLost):
        raise InvalidInputError(
            f'on_device_lost="{config.on_device_lost}" is not known',
            hint='it is "raise" or "rebuild"',
        )
    if config.path is not None:
        raise InvalidInputError(
            "this session runs whole networks, not the part that `path` names",
            hint="use vkmnn.Interpreter(model).create_session(config)",
        )
    if config.out_of_range == "skip":
        network = skipping(network)
    graph = saving(network, config.save_tensors)
    device = device or open_device(config)
    device.backend.suggest(graph.tuned)
    device.backend.offer(graph.packed)
    options: dict[str, Any] = {
        "max_plans": config.plans_kept,
        "require_main": config.require_device,
        "meter": network.meter.renewed,
        "rebuild": config.on_device_lost == "rebuild",
        "open_host": host_opener(network, environment.host_engines()),
        "nest": partial(
            with_branches,
            partial(open_branches, budget=network.meter.budget, seconds=environment.timeout_s()),
        ),
        "static": network.static,
        "told_apart": partial(told_apart, network, config.save_tensors)
        if network.optimise is not None
        else None,
    }
    arguments = graph, device.backend, CpuBackend(config.cpu_threads), run_op
    if is_fastest(config):
        core: Session = open_fastest(network, graph, config, device, arguments, options)
    else:
        core = Session(*arguments, **options)
        say_what_may_be_faster(graph, config, device)
    return OpenSession(core, device.info, device.precision)
