"""Whatever comes in from outside is taken, or refused in one line. Seeded and bounded: the same each time."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save

from aha.bench.plan import make_plans, read_plans
from aha.core.strict import from_json, read_json
from aha.data.images import read_image
from aha.data.labelled import find_labelled, read_mask
from aha.errors import AhaError
from aha.learned.explainer import ExplainerConfig
from aha.methods import METHODS, load_method
from aha.metrics.protocols import load_protocols
from aha.models.scores import load_score
from aha.models.weights import read_weights
from aha.perturb.partitions import PARTITIONS
from aha.perturb.references import REFERENCES, load_reference

LONGEST_LINE = 1500

bounded = settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def holds(work: Callable[[], Any]) -> None:
    """It works, or says in one line why not."""
    try:
        work()
    except AhaError as error:
        text = str(error)
        assert text and "\n" not in text and len(text) <= LONGEST_LINE, text


# Texts

names = st.sampled_from([*METHODS, *PARTITIONS, *REFERENCES, "n", "grid", "inner", "seed", "steps", "None", "x"])
numbers = st.one_of(
    st.integers(-(10**40), 10**40).map(str),
    st.floats(width=64).map(repr),
    st.sampled_from(["-1", "0", "1e999", "-0.0", "9" * 400, "0x10", "1_000", "10**9", "True", "None", "'a\\0b'"]),
)
values = st.recursive(
    st.one_of(names, numbers),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: f"({', '.join(parts)},)" if parts else "()"),
        st.builds(lambda name, parts: f"{name}({', '.join(parts)})", names, st.lists(inner, max_size=3)),
        st.builds(lambda name, key, part: f"{name}({key}={part})", names, names, inner),
    ),
    max_leaves=6,
)
texts = st.one_of(values, st.text(max_size=40), st.builds("".join, st.lists(st.sampled_from("()[]{},=.'\"\\0 a1-*"))))


@bounded
@given(texts)
def test_specs(text: str) -> None:
    for load in (load_method, load_reference, load_protocols, load_score):
        holds(lambda load=load: load(text))  # type: ignore[misc]


# Settings

json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=8,
)
GOOD = {
    "target": "timm:test_vit",
    "target_digest": "0" * 32,
    "encoder": "target",
    "stages": [0, 1],
    "conditioning": "head",
    "num_classes": 10,
    "decoder": {"channels": [8, 8], "class_dim": 8},
    "evidence": "none",
}


@bounded
@given(st.sampled_from([*GOOD, "stray", "rivals", "temperature"]), json_values)
def test_settings_of_explainers(name: str, value: Any) -> None:
    holds(lambda: from_json(ExplainerConfig, {**GOOD, name: value}))
    holds(lambda: from_json(ExplainerConfig, {**GOOD, "decoder": {**GOOD["decoder"], name: value}}))  # type: ignore[dict-item]


@bounded
@given(st.one_of(st.binary(max_size=60), json_values.map(lambda value: json.dumps(value).encode())))
def test_json_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    holds(lambda: read_json(tmp_path / "a.json"))


@bounded
@given(
    st.dictionaries(
        st.sampled_from(
            ["model", "data", "methods", "metrics", "weights", "seed", "limit", "targets", "img_size", "x"]
        ),
        json_values,
        max_size=6,
    )
)
def test_plans(settings: dict[str, Any]) -> None:
    holds(lambda: make_plans({"model": "timm:test_vit", "data": "folder:x", "methods": ["gradient"], **settings}))


@pytest.mark.parametrize("content", [b"a = " + b"[" * 5000, b"\xff", b"a", b"a = 1\na = 2", b'model = "\\u0000"'])
def test_plan_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plan.toml").write_bytes(content)
    with pytest.raises(AhaError):
        read_plans(tmp_path / "plan.toml")


# Files


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """A file with some bytes changed, cut off, or doubled."""

    def change(places: list[tuple[int, int]], end: int, tail: bytes) -> bytes:
        content = bytearray(whole)
        for place, value in places:
            content[place % len(content)] = value
        return bytes(content[: end % (2 * len(content))]) + tail

    places = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6)
    return st.builds(change, places, st.integers(0, 10**6), st.binary(max_size=8))


def picture(kind: str) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (9, 11, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP"])
def test_pictures(tmp_path: Path, kind: str) -> None:
    @bounded
    @given(damaged(picture(kind)))
    def check(content: bytes) -> None:
        holds(lambda: read_image(content, 10**6))
        (tmp_path / "mask.png").write_bytes(content)
        holds(lambda: read_mask(tmp_path / "mask.png"))

    check()


cells = st.one_of(
    st.text(max_size=10), st.sampled_from(["x" * 140_000, "\0", "1e999", "-3", "a.png", '"', "9" * 5000, "nan"])
)


@bounded
@given(st.lists(st.lists(cells, min_size=1, max_size=6), max_size=3))
def test_tables(tmp_path: Path, lines: list[list[str]]) -> None:
    text = "file,label,x0,y0,x1,y1\n" + "\n".join(",".join(line) for line in lines)
    (tmp_path / "a.csv").write_bytes(text.encode("utf-8", "surrogatepass"))
    holds(lambda: find_labelled([tmp_path / "a.csv"]))


def weights_files() -> dict[str, bytes]:
    tensors, buffer = {"a": torch.zeros(2, 3), "b": torch.ones(1)}, io.BytesIO()
    torch.save(tensors, buffer)
    return {"w.safetensors": save(tensors), "w.pth": buffer.getvalue()}


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
def test_weights(tmp_path: Path, name: str) -> None:
    @bounded
    @given(damaged(weights_files()[name]))
    def check(content: bytes) -> None:
        (tmp_path / name).write_bytes(content)
        holds(lambda: read_weights(f"torch:{tmp_path / name}"))

    check()


def test_a_safetensors_file_that_promises_more_than_it_holds(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(AhaError, match=r"w\.safetensors"):
        read_weights(tmp_path / "w.safetensors")
