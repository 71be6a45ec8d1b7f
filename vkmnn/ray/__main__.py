"""Print a node's resources: `ray start --resources="$(python -m vkmnn.ray)"`."""

from __future__ import annotations

import json
import sys

from vkmnn.errors import VkmnnError
from vkmnn.ray.devices import node_resources

_SOFTWARE = "--software"


def main(arguments: list[str]) -> int:
    """Print the resources as JSON; `--software` counts software devices too."""
    if unknown := [one for one in arguments if one != _SOFTWARE]:
        sys.stderr.write(f"unknown argument '{unknown[0]}'\n  hint: the only one is {_SOFTWARE}\n")
        return 2
    try:
        sys.stdout.write(json.dumps(node_resources(software=_SOFTWARE in arguments)) + "\n")
    except VkmnnError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
