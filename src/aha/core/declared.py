"""What can be named in a spec, read from this package's own sources: no method is imported, and so no torch.

Importing torch takes seconds, and neither a list of methods nor a misspelt parameter needs it. What is registered as a
method, metric, reference, ... is run here straight from its source, statement by statement and only as far as somebody
asks: of a class its parameters and their check, of a function all but its annotations. A name that comes from another
library is never imported; whatever uses it has to wait for the real module.
"""

from __future__ import annotations
import __future__ as future

import ast
import builtins
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from aha.core.registry import Registry
from aha.errors import SpecError, UnknownName

Kind = Literal["method", "metric", "reference", "partition", "protocol", "score", "model source"]

# Kind -> the name of its registry, and the decorator by which something enters it, if not by a plain statement.
_REGISTRIES: dict[Kind, tuple[str, str]] = {
    "method": ("METHODS", "method"),
    "metric": ("METRICS", "metric"),
    "reference": ("REFERENCES", "reference"),
    "partition": ("PARTITIONS", "partition"),
    "protocol": ("PROTOCOLS", ""),
    "score": ("SCORES", ""),
    "model source": ("SOURCES", "SOURCES.register"),
}
_ROOT = Path(__file__).parents[1]
_PLAIN = {
    "aha.errors",
    "aha.core.registry",
    "aha.core.spec",
}  # free of torch, and taken as they are: types must be the same


class NeedsImport(NameError):
    """A name of another library, which only the real module has."""


def declared(kind: Kind) -> Registry[Any]:
    """All that the package registers as this kind, under their names: outlines that check their parameters."""
    return _declare(kind)


def check_method(text: str) -> None:
    """Refuses a method's text as `load_method` would; what needs more than its declaration passes."""
    _check(text, "load_method", ("method", "partition", "reference"))


def check_metric(text: str) -> None:
    """Refuses a text that names neither a protocol nor a metric; what needs more than its declaration passes."""
    if text not in declared("protocol"):  # whose names need not be those of metrics
        _check(text, "load_metric", ("metric", "reference"))


def check_score(name: str) -> None:
    """Refuses a score that does not exist."""
    declared("score")[name]


def check_model(text: str) -> None:
    """Refuses a model's text that does not begin with a source of models."""
    _check(text, "split_spec", ("model source",))


def _check(text: str, reader: str, kinds: tuple[Kind, ...]) -> None:
    """Lets the package's own reader of such texts check it."""
    read = _home(kinds[0])[reader]
    mentioned = frozenset(re.findall(r"\w+", text))
    for kind in kinds:
        _declare(kind, mentioned)
    try:
        read(text)
    except NeedsImport:
        return
    except (UnknownName, SpecError):  # say it again, now that all names are there to be suggested
        for kind in kinds:
            _declare(kind)
        read(text)


@cache
def _declare(kind: Kind, only: frozenset[str] | None = None) -> Registry[Any]:
    """The registry of a kind with all names, or at least with these, filled in."""
    name, decorator = _REGISTRIES[kind]
    registry: Registry[Any] = _home(kind)[name]
    if not decorator:
        if kind == "protocol":  # written as texts of metrics
            declared("metric")
            declared("reference")
        _home(kind).run_statements()
        return registry
    for path, text in _texts().items():
        names = re.findall(rf'^@{re.escape(decorator)}\(\s*"(\w+)"', text, re.MULTILINE)
        if names if only is None else only.intersection(names):
            module = _source(_dotted(path))
            for defined in module.decorated_with(decorator):
                module[defined]
    return registry


@cache
def _home(kind: Kind) -> _Source:
    """The module that defines the registry, and what reads texts."""
    start = f"\n{_REGISTRIES[kind][0]}: Registry["
    return _source(_dotted(next(path for path, text in _texts().items() if start in text)))


@cache
def _texts() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in _ROOT.rglob("*.py")}


def _dotted(path: Path) -> str:
    parts = path.relative_to(_ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _source(name: str) -> _Source:
    """The module of this name, of which nothing has run yet."""
    place = _ROOT.parent.joinpath(*name.split("."))
    return _Source(name, place / "__init__.py" if place.is_dir() else place.with_suffix(".py"))


class _Source(dict[str, Any]):
    """The names of one file as the globals of what it defines; each is made when it is first looked up."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(__name__=f"{name} (declared)", __builtins__=builtins)
        self._path = path
        self._body = ast.parse(_texts()[path]).body
        self._makers = {name: node for node in self._body for name in _bound(node)}

    def __missing__(self, name: str) -> Any:
        if name not in self._makers:
            raise KeyError(name)  # a builtin, or nothing at all
        node = self._makers[name]
        if isinstance(node, ast.Import | ast.ImportFrom):
            self[name] = _imported(node, name)
        else:
            self._run(node)
        return self[name]

    def decorated_with(self, decorator: str) -> list[str]:
        """Names of the classes and functions that a call of the decorator stands above."""
        return [
            node.name
            for node in self._body
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
            and any(isinstance(d, ast.Call) and ast.unparse(d.func) == decorator for d in node.decorator_list)
        ]

    def run_statements(self) -> None:
        """Runs what defines no name: calls and loops that fill a registry."""
        for node in self._body:
            if isinstance(node, ast.For) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
                self._run(node)

    def _run(self, node: ast.stmt) -> None:
        self._reduce(node)
        self._look_up(_names_at_once(node))
        # A class's own annotations must be types: as texts, they would be looked up in the real module.
        flags = 0 if isinstance(node, ast.ClassDef) else future.annotations.compiler_flag
        code = compile(ast.Module([node], []), str(self._path), "exec", flags=flags, dont_inherit=True)
        exec(code, self)

    def _reduce(self, node: ast.stmt) -> None:
        """Leaves of a class its parameters and their check, of a function all but its annotations."""
        if isinstance(node, ast.ClassDef):
            node.body = [part for part in node.body if getattr(part, "name", "__post_init__") == "__post_init__"]
            for part in node.body:
                self._reduce(part)
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
        elif isinstance(node, ast.AnnAssign):
            try:
                self._look_up(_names_at_once(node.annotation))
            except NeedsImport:  # a type of another library: no text could give a value of it
                node.annotation = ast.copy_location(ast.Name("object", ast.Load()), node.annotation)

    def _look_up(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._makers:
                self[name]


def _bound(node: ast.stmt) -> Iterator[str]:
    """Names that a statement of a module defines."""
    match node:
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in names)
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def _names_at_once(node: ast.AST) -> Iterator[str]:
    """Names that a statement looks up when it runs, not when what it defines is called."""
    if isinstance(node, ast.FunctionDef):
        parts: list[ast.AST] = [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
    else:
        parts = [] if isinstance(node, ast.Lambda) else list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for part in parts:
        yield from _names_at_once(part)


def _imported(node: ast.Import | ast.ImportFrom, name: str) -> Any:
    alias = next(a for a in node.names if name == (a.asname or a.name.partition(".")[0]))
    module = (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
    if module.partition(".")[0] == "aha" and module not in _PLAIN:
        return _source(module)[alias.name]
    if module not in _PLAIN and module.partition(".")[0] not in sys.stdlib_module_names:
        raise NeedsImport(f"{name} comes from {module}")
    return getattr(import_module(module), alias.name) if isinstance(node, ast.ImportFrom) else import_module(module)
