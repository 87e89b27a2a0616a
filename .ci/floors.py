"""Prints the oldest versions that `pyproject.toml` accepts, as constraints for pip: `make floors` tests with them.

Only what users install is held at its floor; tools of the project (tests, documentation, peers) are the newest ones.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = {"browser", "dev", "docs", "peers", "test"}  # extras of those who work on the project
_FLOOR = re.compile(r"(?P<name>[\w.-]+)(?:\[[\w,-]+\])?>=(?P<version>[\w.]+)")


def floors(project: dict) -> Iterator[str]:
    """`name==version` for each requirement with a lower bound; an unbounded one is an error, since nothing tests it."""
    extras = project["optional-dependencies"]
    listed = [*project["dependencies"], *(line for name in extras.keys() - TOOLS for line in extras[name])]
    for line in sorted(set(listed)):
        found = _FLOOR.match(line)
        if found is None:
            raise SystemExit(f"{line!r} in pyproject.toml states no oldest version; write NAME>=VERSION")
        yield f"{found['name']}=={found['version']}"


if __name__ == "__main__":
    print(*floors(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]), sep="\n")
