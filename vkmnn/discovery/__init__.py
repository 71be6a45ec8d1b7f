"""Finds and loads plug-ins: modules that register operators when they are imported.

An installed package announces its modules by the entry-point group `vkmnn.plugins`; a folder in
`VKMNN_PLUGIN_PATH` holds plug-ins in separate folders, each with a manifest. They are loaded once,
before the first model, unless `VKMNN_PLUGINS` selects others. A plug-in that fails is left out with
a warning, and its registrations are removed; one that the user names raises.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import ModuleType

from vkmnn.base.records import dataclass
from vkmnn.base.registry import Snapshot
from vkmnn.discovery import plugin_folders
from vkmnn.discovery.plugin_folders import Manifest, manifests
from vkmnn.errors import PluginError, VkmnnError

_LOG = logging.getLogger(__name__)

GROUP = "vkmnn.plugins"
_OFF = frozenset({"off", "0", "none"})


@dataclass(frozen=True, slots=True)
class Plugin:
    """A loaded plug-in.

    Attributes:
        name: name of the entry point, or of the module.
        module: the imported module.
        distribution: package and version that announced it; "" when nothing did. For one of a
            folder, name and version in its manifest, and the folder.
        registered: its registrations, as text: "op type SwiGLU", "Vulkan execution of SwiGLU", ….
    """

    name: str
    module: str
    distribution: str
    registered: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A plug-in that could not be loaded: its name, who announced it, and why."""

    name: str
    where: str
    error: PluginError


@dataclass(frozen=True, slots=True)
class _Source:
    """Source of a plug-in: a module by name, or a file or folder.

    `error` is the reason why it cannot be loaded; `named` says that the user asked for it.
    """

    name: str
    module: str
    distribution: str = ""
    path: Path | None = None
    error: PluginError | None = None
    named: bool = False

    @property
    def where(self) -> str:
        """Announcer of the plug-in, and its module or file."""
        return f"{self.distribution or 'VKMNN_PLUGINS'} ({self.path or self.module})"

    def __str__(self) -> str:
        if self.distribution:
            return f"plug-in '{self.name}' of {self.distribution} ({self.module})"
        return f"plug-in '{self.path or self.module}'"


_lock = threading.RLock()
_loaded: dict[str, Plugin] = {}
_left_out: dict[str, LeftOut] = {}
_complete = False


def load_plugins() -> tuple[Plugin, ...]:
    """Load all plug-ins, once; return them in the order of loading.

    A plug-in announced by a package or a folder that cannot be loaded is left out: a warning names
    it and the cause, and `left_out` lists it. Its registrations are removed.

    Raises:
        PluginError: a plug-in that `VKMNN_PLUGINS` names cannot be loaded; this repeats until the
            cause is gone.
    """
    global _complete
    with _lock:
        if not _complete:
            _complete = True  # imports of a plug-in may call this again
            try:
                for source in _sources():
                    _load_or_leave_out(source)
            except BaseException:
                _complete = False
                raise
        return tuple(_loaded.values())


def left_out() -> tuple[LeftOut, ...]:
    """Return the announced plug-ins that `load_plugins` could not load."""
    return tuple(_left_out.values())


def _load_or_leave_out(source: _Source) -> None:
    try:
        _load(source)
    except PluginError as error:
        if source.named:
            raise
        if source.where not in _left_out:
            _LOG.warning("%s, and is left out", error.message, exc_info=error.__cause__)
        _left_out[source.where] = LeftOut(source.name, source.where, error)
    else:
        _left_out.pop(source.where, None)


def load_plugin(module: str | Path) -> Plugin:
    """Load one plug-in now; again it costs nothing.

    Args:
        module: the name of a module, or the path of a `.py` file or of a package's folder.

    Returns:
        The plug-in, with a list of its registrations.

    Raises:
        PluginError: it does not exist, cannot be imported, or registers something that already
            exists.
    """
    with _lock:
        return _load(_source(module))


def survey() -> Iterator[tuple[str, str, PluginError | None]]:
    """Load every plug-in independently; yield its name, its source and its error.

    Raises:
        PluginError: `VKMNN_PLUGINS` names a file that does not exist.
    """
    for source in _sources():
        try:
            with _lock:
                _load(source)
        except PluginError as error:
            yield source.name, source.where, error
        else:
            lines = priorities(_loaded[source.module].registered)
            yield source.name, "; ".join([source.where, *lines]), None


def priorities(registered: Sequence[str]) -> list[str]:
    """Return a line for each registered kernel: its priority, and the kernels it precedes."""
    return list(importlib.import_module("vkmnn.plugin").priorities(registered))


def _sources() -> list[_Source]:
    """Return the plug-ins in `VKMNN_PLUGINS`, or else those announced by packages and folders."""
    text = os.environ.get("VKMNN_PLUGINS", "").strip()
    if text:
        names = [] if text.lower() in _OFF else text.split(",")
        return [replace(_source(name.strip()), named=True) for name in names if name.strip()]
    found = {
        (point.name, point.module, _distribution(point)) for point in _entry_points()
    }  # a set: a package may occur twice, once on the path and once installed
    folders = os.environ.get("VKMNN_PLUGIN_PATH", "").split(os.pathsep)
    named = manifests(Path(folder) for folder in folders if folder.strip())
    files = {one.file for one in named}
    others = [one for one in plugin_folders.in_default_folder() if one.file not in files]
    return [
        *(_Source(*item) for item in sorted(found)),
        *map(_in_folder, [*named, *others]),
    ]


def _in_folder(found: Manifest) -> _Source:
    """Return the plug-in that a manifest describes."""
    origin = f"{found.title}, {found.file}"
    if found.error is not None:
        return _Source(found.name, found.name, origin, error=found.error)
    try:
        source = _source(found.file.parent / found.module)
    except PluginError as error:
        return _Source(found.name, found.name, origin, error=error)
    return replace(source, name=found.name, distribution=origin)


def _entry_points() -> metadata.EntryPoints:
    return metadata.entry_points(group=GROUP)


def _distribution(point: metadata.EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"


def _source(module: str | Path) -> _Source:
    text = str(module)
    if isinstance(module, str) and not text.endswith(".py") and not {"/", os.sep} & set(text):
        return _Source(text, text)
    path = Path(module).expanduser().resolve()
    name = path.stem
    if not (path.is_file() if path.suffix == ".py" else (path / "__init__.py").is_file()):
        raise PluginError(
            f"plug-in '{module}' is neither a .py file nor the folder of a package",
            hint="name the folder that holds __init__.py, or a module that Python can import",
        )
    if not name.isidentifier():
        raise PluginError(
            f"plug-in '{module}': '{name}' cannot be the name of a module",
            hint="rename it: letters, digits and _ only",
        )
    return _Source(name, name, path=path)


def _load(source: _Source) -> Plugin:
    """Import a plug-in; when that fails, nothing of it stays."""
    if source.error is not None:
        raise _failure(source, source.error) from source.error
    if source.module in _loaded:
        _check_same(source)
        return _loaded[source.module]
    _refuse_second(source)
    api = importlib.import_module("vkmnn.plugin")  # everything of vkmnn's own is registered before
    before = Snapshot()
    modules = set(sys.modules)
    try:
        if _import(source).__file__ is None:
            raise PluginError(
                f"'{source.module}' is a folder without __init__.py, not the package",
                hint="run Python in another folder, or install the package",
            )
        api.check_registrations(before)
    except (Exception, SystemExit) as error:  # a module may call sys.exit
        # Another plug-in may have imported modules that registered here: they have to be executed
        # again as well.
        roots = {name.partition(".")[0] for name in (source.module, *before.modules_added())}
        before.restore()
        for name in set(sys.modules) - modules:
            if name.partition(".")[0] in roots - {"vkmnn"}:
                del sys.modules[name]
        raise _failure(source, error) from error
    added = tuple(before.added())
    plugin = Plugin(source.name, source.module, source.distribution, added)
    _loaded[source.module] = plugin
    if not added and source.module not in modules:  # otherwise it has registered before
        _LOG.warning("%s registers nothing: it does not import its modules with operators", source)
    _LOG.debug("%s registers: %s", source, ", ".join(added) or "nothing")
    return plugin


def _refuse_second(source: _Source) -> None:
    """Refuse a plug-in of a name that another one has."""
    for other in _loaded.values():
        if other.name == source.name and other.distribution and source.distribution:
            raise PluginError(
                f"{source} cannot be loaded: another plug-in of that name is loaded, "
                f"{other.distribution} ({other.module})",
                hint="remove one of the two, or rename it",
            )


def _failure(source: _Source, error: BaseException) -> PluginError:
    hint = "repair or uninstall it; VKMNN_PLUGINS=off runs vkmnn without plug-ins"
    if isinstance(error, VkmnnError):
        text = f"{source} cannot be loaded: {error.message}"
        return PluginError(text, op=error.op, hint=error.hint or hint)
    text = f"{source} cannot be loaded: {type(error).__name__}: {error}"
    return PluginError(text, hint=hint)


def _check_same(source: _Source) -> None:
    """Refuse another file under the name of a module that is loaded."""
    file = getattr(sys.modules.get(source.module), "__file__", None)
    if source.path is not None and file is not None and Path(file).resolve() != _file(source.path):
        raise PluginError(
            f"{source} cannot be loaded: module '{source.module}' comes from {file} already",
            hint="rename one of the two",
        )


def _inner_package(module: ModuleType) -> Path | None:
    """Return the inner package of the same name in a folder that Python mistook for one.

    A project next to which Python runs: `gates/gates/__init__.py`.
    """
    name = module.__name__.rpartition(".")[2]
    for folder in module.__path__:
        if Path(folder, name, "__init__.py").is_file():
            return Path(folder, name)
    return None


def _file(path: Path) -> Path:
    return path if path.suffix == ".py" else path / "__init__.py"


def _import(source: _Source) -> ModuleType:
    if source.path is None:
        module = importlib.import_module(source.module)
        inner = _inner_package(module) if module.__file__ is None else None
        if inner is None:
            return module
        del sys.modules[source.module]
        return _import(replace(source, path=inner))
    _check_same(source)
    if source.module in sys.modules:
        return sys.modules[source.module]
    file = _file(source.path)
    folders = None if file == source.path else [str(source.path)]
    spec = importlib.util.spec_from_file_location(
        source.module, file, submodule_search_locations=folders
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[source.module] = module  # the modules of a package import each other by name
    spec.loader.exec_module(module)
    return module
