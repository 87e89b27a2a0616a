"""Pages from templates, the same way everywhere."""

from __future__ import annotations

import re

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape


def templates_of(package: str) -> Environment:
    """The folder `templates` of a package: everything is escaped, and a name that is not given is an error."""
    environment = Environment(
        loader=PackageLoader(package), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["prose"] = prose
    return environment


def prose(text: str) -> Markup:
    """A text as a page shows it: what stands between backticks, as notes and reasons mark names, is code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
