"""The viewer's scripts as one module, so that a page without a server can hold them.

Our own scripts alone are read: each import and each export is a line of one known form, and anything else is an error.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

# In the order in which they need each other.
MODULES = ("dom", "pixels", "lens", "plot", "face", "scrubber", "viewer")
_IMPORT = re.compile(r'^import \{ (?P<names>[^}]+) \} from "\./(?P<module>\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function|class|const) (?P<name>[$\w]+))", re.MULTILINE)


@cache
def viewer_script() -> str:
    """One script that defines `ahaView(element, payload)`."""
    parts = [_wrapped(name, static_text(f"{name}.js")) for name in MODULES]
    return "\n".join([*parts, "const ahaView = module_viewer.view;"])


@cache
def viewer_style() -> str:
    """Its style sheet."""
    return static_text("viewer.css")


def static_text(name: str) -> str:
    """A file beside the scripts."""
    return (files(__package__) / "static" / name).read_text(encoding="utf-8")


def _wrapped(name: str, text: str) -> str:
    """A module as a function that is called at once, so that its names stay its own."""
    exported = [match["name"] for match in _EXPORT.finditer(text)]
    body = _EXPORT.sub("", _IMPORT.sub(r"const { \g<names> } = module_\g<module>;", text))
    if re.search(r"^(import|export)\b", body, re.MULTILINE):
        raise AssertionError(f"{name}.js imports or exports in a form that the bundle does not know")
    return f"const module_{name} = (() => {{\n{body}\nreturn {{ {', '.join(exported)} }};\n}})();"
