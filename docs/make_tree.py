"""Prints the folders of the package with what each is for, from their docstrings; `make tree` puts it into its page.

Modules that belong to no folder are listed by name. `tests/test_documentation.py` compares the page with the sources.
"""

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
WIDTH, COLUMN = 120, 32
_BLOCK = re.compile(r"(?<=<!-- generated: tree -->\n```\n).*?(?=```\n)", re.DOTALL)


def summary(file: Path) -> str:
    """The first sentence or paragraph of a module's docstring, whichever is shorter."""
    found = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return " ".join(found.partition("\n\n")[0].split())


def folders(place: Path, depth: int = 1) -> Iterator[tuple[int, str, str]]:
    """Depth, name and purpose of each folder below a package, in the order of their names."""
    for file in sorted(place.glob("*/__init__.py")):
        yield depth, f"{file.parent.name}/", summary(file)
        yield from folders(file.parent, depth + 1)


def tree(package: Path = ROOT / "src" / "aha") -> str:
    """The listing."""
    alone = [file for file in sorted(package.glob("*.py")) if not file.name.startswith("__")]
    rows = [*folders(package), *((1, file.name, summary(file)) for file in alone)]
    lines = ["src/aha/"]
    for depth, name, purpose in rows:
        head = f"{'  ' * depth}{name}".ljust(COLUMN)
        lines += textwrap.wrap(head + purpose, WIDTH, subsequent_indent=" " * COLUMN, drop_whitespace=True)
    return "\n".join(lines) + "\n"


def filled(page: str) -> str:
    """The page with the listing as it is now."""
    return _BLOCK.sub(lambda _: tree(), page, count=1)


if __name__ == "__main__":
    old = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(filled(old), encoding="utf-8")
    sys.stdout.write(tree())
