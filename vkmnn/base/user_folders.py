"""The platform's cache and data folders of the user."""

from __future__ import annotations

from pathlib import Path

_NAME = "vkmnn"


def cache_folder() -> Path:
    """Return `vkmnn` in the user's cache folder.

    Raises:
        RuntimeError: the user has no home, like service accounts.
    """
    from platformdirs import user_cache_path

    return _absolute(user_cache_path(_NAME, appauthor=False))


def data_folder() -> Path:
    """Return `vkmnn` in the user's data folder.

    Raises:
        RuntimeError: the user has no home, like service accounts.
    """
    from platformdirs import user_data_path

    return _absolute(user_data_path(_NAME, appauthor=False))


def _absolute(path: Path) -> Path:
    # Without a home, platformdirs returns a path with "~".
    return path.expanduser()
