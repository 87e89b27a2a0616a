"""May this tag be published? All that names a version has to name this one, and the urls this repository.

Run by `make release TAG=v0.1.0`, and by the workflow that publishes.
"""

import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


def problems(tag: str, repository: str, root: Path = ROOT) -> Iterator[str]:
    """What speaks against it, a line each; a repository without a name is somebody's clone, and not compared."""
    version = found(r'^__version__ = "(.+)"$', root / "src" / "aha" / "__init__.py")
    if tag != f"v{version}":
        yield f"the tag is {tag}, the package {version}: tag v{version}, or change __version__ in src/aha/__init__.py"
    cited = found(r"^version: (.+)$", root / "CITATION.cff")
    if cited != version:
        yield f"CITATION.cff says {cited}, the package {version}: change CITATION.cff"
    newest = found(r"^## (\d\S*) \(\d{4}-\d\d-\d\d\)$", root / "CHANGELOG.md")
    if newest != version:
        yield f"the newest section of CHANGELOG.md is {newest or 'missing'}: write `## {version} (YYYY-MM-DD)`"
    urls = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    if repository and urls["Repository"] != repository:
        yield f"this is {repository}, [project.urls] of pyproject.toml says {urls['Repository']}: change all of them"


def found(pattern: str, path: Path) -> str:
    """The first place of a file that matches, or nothing."""
    match = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else ""


if __name__ == "__main__":
    server, name = os.environ.get("GITHUB_SERVER_URL", ""), os.environ.get("GITHUB_REPOSITORY", "")
    if against := list(problems(" ".join(sys.argv[1:]), f"{server}/{name}" if name else "")):
        raise SystemExit("\n".join(against))
    print("release: nothing speaks against it")
