"""Repositories on the Hugging Face Hub, through huggingface_hub and its cache."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from vkmnn.base.extras import need
from vkmnn.base.records import dataclass
from vkmnn.errors import BudgetError, InvalidInputError, ModelFileError, nearest
from vkmnn.runtime import environment
from vkmnn.sources.companions import companions
from vkmnn.sources.names import HUB, HubName
from vkmnn.sources.variants import gguf_variants, named, plain_of, preferred, role_of

_log = logging.getLogger(__name__)

_WHAT = "loading a model from the hub"
_SMALL = ("*.json", "*.jinja", "*.txt", "*.model")
"""Files fetched with every model: configurations, labels, vocabularies."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_LISTED = 12


@dataclass(frozen=True, slots=True)
class Repository:
    """A commit of a repository, and the sizes of its files in bytes by path; None if unknown.

    `cached` is the folder of the local files if the Hub must not be asked.
    """

    name: HubName
    commit: str
    files: Mapping[str, int | None]
    cached: Path | None = None

    def networks(self) -> list[str]:
        """Return the files that each hold a network."""
        from vkmnn.converter.foreign import READ

        files = [name for name in sorted(self.files) if name.lower().endswith(READ)]
        return [*files, *gguf_variants(self.files).values()]

    def is_language_model(self) -> bool:
        """Return whether the repository contains a language model or an embedding model."""
        from vkmnn.converter.foreign import holds_language_model

        return any(holds_language_model(self._top(one)) for one in ("", self.name.file))

    def is_described(self) -> bool:
        """Return whether a network is built from the repository's config and weights."""
        weights = any(name.endswith(".safetensors") for name in self._top(self.name.file))
        return weights and not self.networks() and self.is_language_model()

    def is_pipeline(self) -> bool:
        """Return whether the repository is a diffusers pipeline."""
        from vkmnn.converter.foreign import is_pipeline

        return is_pipeline(self.files)

    def size(self, file: str) -> int | None:
        """Return the size of a network with its external data in bytes; None if unknown."""
        sizes = [self.files[one] for one in (file, *self._data_of([file]))]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def _top(self, folder: str) -> list[str]:
        """Return the files in a folder of the repository and in its subfolder onnx."""
        start = f"{folder}/" if folder else ""
        inner = [name.removeprefix(start) for name in self.files if name.startswith(start)]
        return [name for name in inner if "/" not in name.removeprefix("onnx/")]

    def _data_of(self, files: Iterable[str]) -> list[str]:
        """Return the names of files that hold other files' external data."""
        starts = tuple(f"{file}{mark}" for file in files for mark in ("_data", ".data", ".weight"))
        return [name for name in self.files if starts and name.startswith(starts)]

    # --- selection -----------------------------------------------------------------------------

    def network(self, of_task: bool = False) -> str:
        """Return the file of the network that the name refers to.

        Args:
            of_task: whether a network of a language model is acceptable.

        Raises:
            ModelFileError: there is none, or the name matches several.
        """
        files = self.networks()
        wanted = self.name.file
        if wanted:
            found = named(self.files, wanted) or self._within(files, wanted)
            found = [one for one in found if one in files] or found
            if not found:
                hint = nearest(wanted, files or self.files, "its models")
                raise ModelFileError(f"{self._shown()} has no file '{wanted}'", hint=hint)
            files = found
        elif self.is_pipeline():
            raise self._ambiguous("is a pipeline of diffusers, of several networks", files)
        elif self.is_language_model() and not of_task:
            raise self._ambiguous(
                f"is a language model, for `vkmnn generate {self.name}` and vkmnn.llm.load", files
            )
        if not files:
            raise ModelFileError(
                f"{self._shown()} has no model that vkmnn reads",
                hint=f"it has {', '.join(sorted(self.files)[:_LISTED]) or 'no files'}",
            )
        plain = plain_of(files)
        if plain is None:
            raise self._ambiguous(f"has {len(files)} models", files)
        return plain

    def _within(self, files: Iterable[str], folder: str) -> list[str]:
        return [one for one in files if folder and one.startswith(f"{folder}/")]

    def _shown(self) -> str:
        return f"'{self.name.repository}' at {self.commit[:12]}"

    def _ambiguous(self, what: str, files: Collection[str]) -> ModelFileError:
        names = [str(HubName(self.name.repository, one, self.name.revision)) for one in files]
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        listed = f"{', '.join(names[:_LISTED])}{more}" if names else "there is no network in it"
        return ModelFileError(f"'{self.name}' {what}", hint=f"one of its networks: {listed}")

    def is_one_network(self) -> bool:
        """Return whether the name refers to one network, or to variants of one."""
        if self.names_network():
            return True
        whole = self.is_pipeline() or _has(self.files, "genai_config.json")
        files = self.networks()
        return not whole and bool(files) and plain_of(files) is not None

    def plain(self) -> str | None:
        """Return "fp32" if the repository has networks in full precision, else None."""
        roles = (role_of(name) for name in self.networks())
        return "fp32" if any(role is not None and role[1] == "" for role in roles) else None

    def names_network(self) -> bool:
        """Return whether the name refers to a network's file rather than to a whole model."""
        file = self.name.file
        return file in self.networks() and not file.endswith(".gguf")

    def variant(self) -> str | None:
        """Return the variant that the name selects: "q4", a file, or None."""
        file = self.name.file
        if not file or self._within(self.files, file) or file.endswith(".gguf"):
            return None
        role = role_of(file) if file in self.files else None
        return (role[1] or "fp32") if role else file

    def parts(self, variant: str | None) -> list[str]:
        """Return the files of a model with several networks: a language model or a pipeline.

        Args:
            variant: the variant of the files, "q4" for example; None for the preferred one.

        Raises:
            InvalidInputError: the variant does not exist.
        """
        there = self._within(self.files, self.name.file) or list(self.files)
        small = [name for name in there if any(fnmatchcase(name, one) for one in _SMALL)]
        if self.name.file.endswith(".gguf"):
            chosen = [self.network(), *self._parts_of(self.network(), there)]
        elif self.is_pipeline():
            chosen = [name for name in there if name.endswith(".onnx")]
        elif _has(there, "genai_config.json"):
            return there
        else:
            chosen = self._variant(there, variant)
        return sorted({*chosen, *self._data_of(chosen), *small})

    def _variant(self, there: Collection[str], variant: str | None) -> list[str]:
        roles: dict[str, dict[str, str]] = {}
        for name in there:
            if (found := role_of(name)) is not None and name.count("/") <= 1:
                roles.setdefault(found[0], {}).setdefault(found[1], name)
        ggufs = gguf_variants(there)
        whole = [name for name in there if name.endswith(".safetensors")]
        wanted = "" if variant == "fp32" else variant
        known = {one for files in roles.values() for one in files} if roles else set(ggufs)
        if wanted is not None and wanted not in known:
            raise InvalidInputError(
                f"'{self.name.repository}' has no variant '{variant}'",
                hint=f"it has {', '.join(sorted(one or 'fp32' for one in known)) or 'none'}",
            )
        if roles:
            best = wanted if wanted is not None else preferred(known)
            return [
                files[best] if best in files else files[preferred(files)]
                for files in roles.values()
            ]
        if whole and wanted is None:
            return whole
        if ggufs:
            file = ggufs[preferred(ggufs) if wanted is None else wanted]
            return [file, *self._parts_of(file, there)]
        return list(there)

    def _parts_of(self, file: str, there: Iterable[str]) -> list[str]:
        """Return the other parts of a split GGUF file."""
        match = re.fullmatch(r"(.*-)\d{5}(-of-\d{5}\.gguf)", file)
        if match is None:
            return []
        return [one for one in there if one.startswith(match[1]) and one.endswith(match[2])]


def _has(files: Iterable[str], name: str) -> bool:
    return any(PurePosixPath(file).name == name for file in files)


def open_repository(name: HubName) -> Repository:
    """Return a revision of a repository with its files; offline, those that are cached.

    Raises:
        ModelFileError: the repository or revision does not exist, or cannot be reached.
        MissingExtraError: huggingface_hub is not installed.
    """
    hub = need("huggingface_hub", _WHAT, "hub")
    cached = _cached(name)
    if environment.offline() or hub.constants.HF_HUB_OFFLINE:
        if cached is None:
            reason = "it is not in the Hub's cache, and downloads are disabled"
            raise _refused(name, reason, "unset HF_HUB_OFFLINE and VKMNN_OFFLINE, or pass a folder")
        return cached
    if cached is not None and name.revision == cached.commit and name.file in cached.files:
        return cached  # commits are immutable
    try:
        found = hub.HfApi().model_info(
            name.repository, revision=name.revision or None, files_metadata=True
        )
    except Exception as error:  # huggingface_hub's own errors have no common base class
        if cached is not None and _unreachable(error):
            _log.warning("the Hub cannot be reached, using its cache: %s", _first_line(error))
            return cached
        raise _refused(name, _first_line(error)) from error
    files = {one.rfilename: one.size for one in found.siblings or ()}
    return Repository(name, str(found.sha), files)


def _cached(name: HubName) -> Repository | None:
    """Return the part of a repository that is in the Hub's cache."""
    constants = need("huggingface_hub.constants", _WHAT, "hub")
    folder = Path(constants.HF_HUB_CACHE) / f"models--{name.repository.replace('/', '--')}"
    revision = name.revision or "main"
    try:
        commit = revision
        if not _COMMIT.fullmatch(revision):
            commit = (folder / "refs" / revision).read_text("utf-8").strip()
        if not _COMMIT.fullmatch(commit):
            return None
        there = folder / "snapshots" / commit
        files = [path for path in there.rglob("*") if path.is_file()] if there.is_dir() else []
        sizes = {path.relative_to(there).as_posix(): path.stat().st_size for path in files}
    except (OSError, ValueError):
        return None
    return Repository(name, commit, sizes, there) if sizes else None


def download(repository: Repository, files: Collection[str]) -> Path:
    """Download the missing files of a repository and return their folder.

    Raises:
        ModelFileError: one cannot be downloaded.
        BudgetError: they are larger than `VKMNN_MAX_DOWNLOAD`.
    """
    if repository.cached is not None:
        return repository.cached
    total = sum(repository.files.get(file) or 0 for file in files)
    if total > environment.max_download():
        raise BudgetError(
            f"'{repository.name}' is not downloaded: its files have {total:,} bytes",
            hint="VKMNN_MAX_DOWNLOAD sets the largest size, 64 GiB by default",
        )
    name = repository.name
    hub = need("huggingface_hub", _WHAT, "hub")
    _log.info("%s is at commit %s", name.repository, repository.commit)
    patterns = [re.sub(r"([*?[])", r"[\1]", file) for file in files]
    try:
        folder = hub.snapshot_download(
            name.repository, revision=name.revision or None, allow_patterns=patterns
        )
    except Exception as error:  # huggingface_hub's own errors have no common base class
        raise _refused(name, _first_line(error)) from error
    return Path(folder)


def download_network(repository: Repository, file: str) -> Path:
    """Download a network with its external data and small files, and return its file.

    Raises:
        ModelFileError: as `download`; or it names data outside its folder.
    """
    small = [one for one in repository.files if any(fnmatchcase(one, two) for two in _SMALL)]
    near = PurePosixPath(file).parent
    small = [one for one in small if PurePosixPath(one).parent in (near, *near.parents)]
    path = download(repository, {file, *repository._data_of([file]), *small}) / file
    if repository.cached is None:
        beside = [(near / one.path).as_posix() for one in companions(path)]
        missing = [one for one in beside if one in repository.files]
        missing = [one for one in missing if not (path.parents[len(near.parts)] / one).exists()]
        if missing:
            download(repository, missing)
    return path


def _unreachable(error: Exception) -> bool:
    """Return whether an error concerns the connection rather than the repository."""
    answer = getattr(error, "response", None)
    return answer is None or answer.status_code >= 500


_REASONS = {
    "RevisionNotFoundError": "there is no such revision",
    "GatedRepoError": "its owners grant access to people who ask for it on its page",
    "RepositoryNotFoundError": "there is no such repository, or it is private",
}
"""Reasons by class of huggingface_hub's errors, specific ones before general ones."""


def _first_line(error: Exception) -> str:
    names = {one.__name__ for one in type(error).__mro__}
    known = next((reason for name, reason in _REASONS.items() if name in names), "")
    return known or str(error).strip().split("\n")[0] or type(error).__name__


def _refused(name: HubName, reason: str, hint: str = "") -> ModelFileError:
    return ModelFileError(
        f"'{name}' cannot be downloaded from the Hub: {reason}",
        hint=hint
        or f"check the name ({HUB}owner/name:file@revision), the network, and HF_TOKEN "
        "for models that ask for a login; or pass a folder",
    )
