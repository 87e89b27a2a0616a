"""Spec texts: what is written comes back the same, and nothing in a text is ever executed."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from aha.core.registry import Registry
from aha.core.spec import MAX_LENGTH, Spec, parse
from aha.errors import SpecError, UnknownName
from aha.methods import METHODS, load_method
from aha.methods.gradients.gradient import Gradient
from aha.methods.smooth import Smooth
from aha.metrics import load_metric
from aha.perturb.references import load_reference

THINGS: Registry[type[Spec]] = Registry("thing")


def thing(name: str) -> Any:
    def add(cls: type[Spec]) -> type[Spec]:
        cls.name = name
        return THINGS.register(name)(cls)

    return add


@thing("leaf")
@dataclass(frozen=True)
class Leaf(Spec):
    whole: int = 3
    number: float = 0.5
    flag: bool = False
    word: str = "a b"
    choice: Literal["x", "y", 7] = "x"
    maybe: int | None = None
    several: tuple[float, ...] = (1.0, 2.0)
    two: tuple[int, str] = (1, "one")


@thing("branch")
@dataclass(frozen=True)
class Branch(Spec):
    inner: Spec
    times: int = 2


@thing("file")
@dataclass(frozen=True)
class File(Spec):
    path: str
    inner: Spec
    times: int = 2


def random_thing(draw: random.Random, depth: int = 3) -> Spec:
    kind = draw.choice([Leaf, Branch, File]) if depth else Leaf
    if kind is Branch:
        return Branch(random_thing(draw, depth - 1), draw.randint(-5, 5))
    word = "".join(draw.choice("aZ0 _'\"\\(),=\n\téß漢🙂#") for _ in range(draw.randint(0, 12)))
    if kind is File:
        return File(word, random_thing(draw, depth - 1), draw.randint(-5, 5))
    return Leaf(
        whole=draw.randint(-(10**12), 10**12),
        number=draw.choice([draw.uniform(-1e3, 1e3), draw.uniform(-1, 1) * 10.0 ** draw.randint(-300, 300), 0.0]),
        flag=draw.random() < 0.5,
        word=word,
        choice=draw.choice(["x", "y", 7]),
        maybe=draw.choice([None, 0, -1]),
        several=tuple(draw.uniform(-9, 9) for _ in range(draw.randint(0, 4))),
        two=(draw.randint(-9, 9), word),
    )


def test_text_and_value_are_the_same_thing() -> None:
    draw = random.Random(5)
    for _ in range(300):
        value = random_thing(draw)
        again = parse(str(value), THINGS)
        assert again == value
        assert hash(again) == hash(value)
        assert str(again) == str(value)


def test_only_what_differs_from_the_defaults_is_written() -> None:
    assert str(Leaf()) == "leaf"
    assert str(Leaf(whole=4, choice=7)) == "leaf(whole=4, choice=7)"
    assert str(Branch(Leaf(flag=True))) == "branch(leaf(flag=True))"
    assert str(File("a/b.c", Branch(Leaf()), times=3)) == "file('a/b.c', branch(leaf), times=3)"
    assert str(Leaf(several=(1.0,))) == "leaf(several=(1.0,))"


def test_equal_values_have_equal_texts() -> None:
    assert parse("leaf(number=1)", THINGS) == parse(" leaf ( number = 1.0 ) ", THINGS)
    assert str(parse("leaf(number=1)", THINGS)) == "leaf(number=1.0)"
    assert parse("leaf(several=[3, 4])", THINGS) == parse("leaf(several=(3.0, 4.0))", THINGS)
    assert parse("branch(inner=leaf)", THINGS) == parse("branch(leaf())", THINGS)
    assert parse("leaf(-3)", THINGS) == Leaf(whole=-3)


HOSTILE = {
    "attribute": "gradient.__class__",
    "attribute inside": "smooth(gradient.__class__)",
    "call of an attribute": "smooth(gradient.__init__())",
    "call of a call": "gradient()()",
    "import": "__import__('os').system('true')",
    "builtin": "smooth(open('/etc/passwd'))",
    "lambda": "smooth(lambda: gradient)",
    "comprehension": "smooth([gradient for _ in (1,)][0])",
    "generator": "smooth(gradient for _ in (1,))",
    "formatted text": "gradient(channels=f'{1}')",
    "walrus": "smooth(x := gradient)",
    "dictionary": "gradient({'channels': 'sum'})",
    "set": "gradient({1})",
    "keyword unpacking": "gradient(**{'channels': 'sum'})",
    "unpacking": "gradient(*['sum'])",
    "arithmetic": "smooth(gradient, n=1 + 1)",
    "comparison": "smooth(gradient, n=1 < 2)",
    "condition": "gradient if 1 else rollout",
    "subscript": "gradient[0]",
    "await": "await gradient",
    "not": "smooth(gradient, n=not 1)",
    "bytes": "gradient(channels=b'sum')",
    "complex": "smooth(gradient, sigma=1j)",
    "ellipsis": "smooth(gradient, n=...)",
    "assignment": "x = gradient",
    "two statements": "gradient; gradient",
    "two lines": "gradient\ngradient",
    "number": "3",
    "text": "'gradient'",
    "tuple": "gradient, gradient",
    "nothing": "",
    "blank": "   ",
    "null byte": "gradient\0",
    "unbalanced": "smooth(gradient",
    "surrogate": "gradient(channels='\ud800')",
    "minus text": "gradient(-'sum')",
    "minus flag": "smooth(gradient, n=-True)",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_method(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "text",
    [
        "gradient(" + "+".join("1" * 1900) + ")",
        "gradient(" + "-" * 3900 + "1)",
        "gradient(a" + ".a" * 1900 + ")",
        "gradient(" + "not " * 900 + "1)",
        "gradient(" + "[" * 1900 + "]" * 1900 + ")",
        "smooth(" * 500 + "gradient" + ")" * 500,
        "smooth(" * 199 + "gradient" + ")" * 199 + ".x",
        "gradient" + "()" * 1900,
        "gradient(channels='" + "x" * MAX_LENGTH + "')",
        "x" * 10**6,
    ],
    ids=lambda text: f"{text[:12]}-{len(text)}",
)
def test_deep_and_long_texts_are_refused(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_method(text)
    assert len(str(caught.value)) < 400


def test_deep_but_honest_nesting_works() -> None:
    deep = "smooth(" * 60 + "gradient" + ")" * 60
    assert str(load_method(deep)) == deep


def test_no_text_can_reach_a_module() -> None:
    before = set(sys.modules)
    for text in HOSTILE.values():
        with pytest.raises(SpecError):
            load_method(text)
    assert set(sys.modules) == before


def test_unknown_names_are_met_with_suggestions() -> None:
    with pytest.raises(UnknownName, match=r"unknown method 'grad_cm'; did you mean grad_cam"):
        load_method("grad_cm")
    with pytest.raises(UnknownName, match="did you mean gradient"):
        load_method("smooth(gradent)")
    with pytest.raises(UnknownName, match=r"`aha list methods` shows all \d+"):
        load_method("qqqq")
    with pytest.raises(UnknownName, match=r"known: adaptive_blur, .*black"):
        load_reference("qqqq")
    with pytest.raises(SpecError, match=r"smooth has no parameter 'sgma'; did you mean sigma"):
        load_method("smooth(gradient, sgma=1)")
    with pytest.raises(SpecError, match=r"edge_map has no parameter 'x'; it has: no parameters"):
        load_method("edge_map(x=1)")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("smooth", r"smooth needs inner, for example smooth\(gradient\)"),
        ("file(inner=leaf)", r"file needs path, for example file\(path=\.\.\.\)"),
        ("gradient(1, 2)", "gradient takes at most 1 parameters, got 2"),
        ("smooth(gradient, inner=gradient)", "smooth: inner is given twice"),
        ("smooth(gradient, n=1, n=2)", "smooth: n is given twice"),
        ("smooth(3)", "smooth: inner must be a method, not 3"),
        ("smooth(gradient, n=1.5)", "n must be a whole number of at least 1, not 1.5"),
        ("smooth(gradient, n=True)", "n must be a whole number of at least 1, not True"),
        ("smooth(gradient, n='3')", "n must be a whole number of at least 1, not '3'"),
        ("smooth(gradient, sigma=True)", "sigma must be a number of at least 0, not True"),
        ("smooth(gradient, n=None)", "n must be a whole number of at least 1, not None"),
        ("smooth(gradient, seed=gradient)", "seed must be a whole number or None, not gradient"),
        ("gradient(channels='mean')", "channels must be one of 'max_abs', 'sum_abs', 'sum', not 'mean'"),
        ("gradient(channels=['sum'])", r"channels must be one of .*, not \('sum',\)"),
        ("smooth(gradient, sigma=1e999)", "sigma must be a number of at least 0, not inf"),
        ("smooth(gradient, sigma=-1e999)", "sigma must be a number of at least 0, not -inf"),
        ("leaf(several=3)", "several must be a list of numbers, not 3"),
        ("leaf(several=('x',))", "several must be a list of numbers, not "),
        ("leaf(two=(1, 2, 3))", "two must be a list of a whole number and a text, not"),
        ("leaf(word=3)", "word must be a text, not 3"),
        ("leaf(flag=1)", "flag must be True or False, not 1"),
    ],
)
def test_wrong_values_are_named(text: str, says: str) -> None:
    registry: Any = THINGS if text.startswith(("leaf", "file")) else METHODS
    with pytest.raises(SpecError, match=says):
        parse(text, registry)


@pytest.mark.parametrize(
    "text",
    [
        "center_map(sigma=0)",
        "smooth(gradient, n=0)",
        "smooth(gradient, sigma=-0.1)",
        "integrated_gradients(steps=0)",
        "integrated_gradients(steps=1, rule='trapezoid')",
        "legrad(layers=0)",
        "rollout(start_layer=-1)",
        "rollout(discard_ratio=1.0)",
        "grad_cam(layer=0)",
        "hires_cam(layer=1)",
        "raw_attention(layer=0)",
    ],
)
def test_values_out_of_range_are_refused_when_written(text: str) -> None:
    name = text.partition("(")[0]
    with pytest.raises(SpecError, match=f"^{name}: "):
        load_method(text)


def test_python_calls_are_checked_like_texts() -> None:
    with pytest.raises(SpecError, match="inner must be a method"):
        Smooth("gradient")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="sigma must be a number of at least 0, not nan"):
        Smooth(Gradient(), sigma=float("nan"))
    assert Smooth(Gradient(), sigma=1).sigma == 1.0


def test_a_name_is_registered_once() -> None:
    registry: Registry[int] = Registry("number")
    registry.register("one")(1)
    with pytest.raises(ValueError, match="registered twice"):
        registry.register("one")(1)
    assert ("one" in registry, "two" in registry, len(registry), list(registry)) == (True, False, 1, ["one"])


def test_a_text_without_its_quotes_is_told_so() -> None:
    with pytest.raises(
        SpecError, match=r"ins_del: steps=adaptive is not a number; write texts in quotes, steps='adaptive'"
    ):
        load_metric("ins_del(steps=adaptive)")
    with pytest.raises(UnknownName, match=r"unknown reference 'blakc'; did you mean black\?"):
        load_metric("ins_del(references=blakc)")


def test_a_bad_reference_is_called_a_reference() -> None:
    with pytest.raises(UnknownName, match=r"^unknown reference 'blck'; did you mean black"):
        load_metric("deletion(references=(blck,))")
    with pytest.raises(UnknownName, match=r"^unknown reference 'zzz'; references: "):
        load_metric("deletion(references=(zzz,))")
    with pytest.raises(UnknownName, match=r"^unknown reference 'insertion'"):  # a metric is no parameter of a metric
        load_metric("deletion(references=(insertion,))")
    with pytest.raises(UnknownName, match=r"^unknown method 'gradientt'; did you mean gradient"):
        load_method("smooth(gradientt)")
    with pytest.raises(UnknownName, match=r"^unknown method or partition or reference 'zzz'"):
        load_method("smooth(zzz)")
