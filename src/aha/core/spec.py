"""Spec texts: `smooth(grad_cam(layer=-2), n=20)` <-> values. Safe: literals and registered names only.

A spec class is a frozen dataclass derived from `Spec` and registered under a name. Its text is the name, followed by
the fields that differ from their defaults; fields that hold another spec or a path come first, without their name.
The same text serves Python, command line, configuration, tables, URLs and cache keys.
"""

from __future__ import annotations

import ast
import re
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, ClassVar, TypeVar, get_args

from aha.core.registry import Registry, nearest_names
from aha.core.validation import PYTHON, checked, hints_of
from aha.errors import SpecError, UnknownName

MAX_LENGTH = 4000  # longer texts are not written by people, and deep nesting would exhaust Python's own parser

S = TypeVar("S", bound="Spec")


@dataclass(frozen=True)
class Spec:
    """A value with a text: printable, comparable, hashable, and rebuilt from its own text."""

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        hints = hints_of(type(self))
        for field in fields(self):
            place = f"{self.name}: {field.name}"
            fitted = checked(getattr(self, field.name), hints[field.name], place, notation=_NOTATION)
            object.__setattr__(self, field.name, fitted)

    def in_full(self) -> str:
        """The text with every field written out, defaults included: a record that later defaults cannot change."""
        parts = ", ".join(f"{field.name}={written(getattr(self, field.name), in_full=True)}" for field in fields(self))
        return f"{self.name}({parts})" if parts else self.name

    def __str__(self) -> str:
        parts = []
        positional = True  # leading spec and path fields are written without their names
        for field in fields(self):
            value = getattr(self, field.name)
            if positional and _is_leading(field):
                parts.append(written(value))
                continue
            positional = False
            if not _is_default(field, value):
                parts.append(f"{field.name}={written(value)}")
        return f"{self.name}({', '.join(parts)})" if parts else self.name


def parse(text: str, registry: Registry[type[S]], *inner: Registry[Any]) -> S:
    """The value that `text` describes, of a class of `registry`; its parameters are of `inner` ones, or of the same."""
    if not isinstance(text, str):
        raise SpecError(f"a {registry.kind} is a text such as name(parameter=value), not a {type(text).__name__}")
    if len(text) > MAX_LENGTH:
        raise SpecError(f"a {registry.kind} text of {len(text)} characters is longer than {MAX_LENGTH}")
    try:
        tree = ast.parse(_without_hyphens(text.strip()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SpecError(
            f"cannot read {registry.kind} {_shorten(text)!r}; write name or name(parameter=value)"
        ) from None
    if not isinstance(tree, ast.Name | ast.Call):
        raise SpecError(f"{_shorten(text)!r} is not a {registry.kind}; write name or name(parameter=value)")
    name = tree.id if isinstance(tree, ast.Name) else getattr(tree.func, "id", "")
    if name:
        registry[name]  # the outermost name must be of this kind, whatever its parameters are
    value = _build(tree, inner or (registry,), outermost=(registry,))
    assert isinstance(value, Spec)
    return value  # type: ignore[return-value]  # the registry holds only classes of S


def value_of(text: str, *registries: Registry[Any]) -> Any:
    """The value that a parameter's text, as `written` gives it, stands for."""
    return _build(ast.parse(text, mode="eval").body, registries)


_HYPHENATED = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[A-Za-z_]\w*(?:-[A-Za-z_]\w*)+""")


def _without_hyphens(text: str) -> str:
    """Names such as `grad-cam` as Python can read them; what is in quotes stays as it is."""
    return _HYPHENATED.sub(lambda found: found[0] if found[0][0] in "'\"" else found[0].replace("-", "_"), text)


def _class(name: str, registries: tuple[Registry[Any], ...]) -> type[Spec]:
    """The class of a name inside a spec, which may be of several kinds."""
    for registry in registries:
        if name in registry:
            found: type[Spec] = registry[name]
            return found
    close = {near: registry.kind for registry in registries for near in nearest_names(name, registry)}
    if best := nearest_names(name, close):
        raise UnknownName(f"unknown {close[best[0]]} {name!r}; did you mean {', '.join(best)}?")
    kinds = " or ".join(registry.kind for registry in registries)
    lists = "; ".join(f"{registry.kind}s: {_some_of(registry)}" for registry in registries)
    raise UnknownName(f"unknown {kinds or 'value'} {name!r}; {lists or 'write a number, a text or a list'}")


def _some_of(registry: Registry[Any], most: int = 8) -> str:
    names = list(registry)
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _build(
    node: ast.expr, registries: tuple[Registry[Any], ...], outermost: tuple[Registry[Any], ...] | None = None
) -> Any:
    named_in = registries if outermost is None else outermost
    match node:
        case ast.Constant(value=value) if isinstance(value, bool | int | float | str | None):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if (
            type(value) is not bool
        ):
            return -value
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return tuple(_build(element, registries) for element in elements)
        case ast.Name(id=name):
            return _create(_class(name, named_in), [], {})
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            if any(keyword.arg is None for keyword in keywords) or any(isinstance(a, ast.Starred) for a in args):
                raise SpecError(f"{name}: * and ** are not allowed in a spec")
            written = [str(keyword.arg) for keyword in keywords]
            if twice := {word for word in written if written.count(word) > 1}:
                raise SpecError(f"{name}: {', '.join(sorted(twice))} is given twice")
            cls = _class(name, named_in)
            for keyword in keywords:
                _check_word(cls, keyword, registries)
            named = {str(keyword.arg): _build(keyword.value, registries) for keyword in keywords}
            return _create(cls, [_build(arg, registries) for arg in args], named)
    kinds = "".join(f" and {registry.kind}s" for registry in named_in[:1])
    raise SpecError(f"{_source(node)} is not allowed in a spec; use numbers, texts, lists{kinds}")


def _check_word(cls: type[Spec], keyword: ast.keyword, registries: tuple[Registry[Any], ...]) -> None:
    """A bare word where no spec can stand was meant as a text, or is a slip: `steps=adaptive`."""
    if not isinstance(keyword.value, ast.Name) or any(keyword.value.id in registry for registry in registries):
        return
    name, word = str(keyword.arg), keyword.value.id
    if name in {field.name for field in fields(cls)} and not _holds_specs(hints_of(cls)[name]):
        raise SpecError(f"{cls.name}: {name}={word} is not a number; write texts in quotes, {name}={word!r}")


def _holds_specs(hint: Any) -> bool:
    return any(map(_holds_specs, get_args(hint))) or (isinstance(hint, type) and issubclass(hint, Spec))


def _create(cls: type[S], positional: list[Any], named: dict[str, Any]) -> S:
    known = [field.name for field in fields(cls)]
    for name in named:
        if name not in known:
            hints = nearest_names(name, known)
            advice = f"did you mean {', '.join(hints)}?" if hints else f"it has: {', '.join(known) or 'no parameters'}"
            raise SpecError(f"{cls.name} has no parameter {name!r}; {advice}")
    if len(positional) > len(known):
        raise SpecError(f"{cls.name} takes at most {len(known)} parameters, got {len(positional)}")
    values = dict(zip(known, positional, strict=False))
    if twice := values.keys() & named.keys():
        raise SpecError(f"{cls.name}: {', '.join(sorted(twice))} is given twice")
    values |= named
    for field in fields(cls):
        if field.name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise SpecError(f"{cls.name} needs {field.name}, for example {cls.name}({_example(cls, field)})")
    return cls(**values)


def _example(cls: type[Spec], field: Field[Any]) -> str:
    hint = hints_of(cls)[field.name]
    return "gradient" if isinstance(hint, type) and issubclass(hint, Spec) else f"{field.name}=..."


def _is_leading(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _is_default(field: Field[Any], value: Any) -> bool:
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return bool(type(default) is type(value) and default == value)


def written(value: Any, in_full: bool = False) -> str:
    """A parameter's value as it is typed in a text: a word in quotes, a spec without."""
    if isinstance(value, Spec):
        return value.in_full() if in_full else str(value)
    if isinstance(value, tuple):
        inner = ", ".join(written(element, in_full) for element in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


_NOTATION = PYTHON._replace(show=written)  # a spec inside a spec by its text


def _source(node: ast.expr) -> str:
    try:
        return repr(_shorten(ast.unparse(node)))
    except RecursionError:  # what is read in one go may still be too deep to be written down
        return "such deep nesting"


def _shorten(text: str, length: int = 60) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
