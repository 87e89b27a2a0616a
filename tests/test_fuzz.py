"""Whatever comes in from outside is taken, or refused in one line. Seeded and bounded: the same each time."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import tempfile
import threading
import time
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
from aha.bench.records import Cell
from aha.bench.store import ROWS, RunStore, read_cells, work_of
from aha.core.disk import result_key
from aha.core.validation import from_json, read_json
from aha.data.datasets import find_data
from aha.data.images import read_image
from aha.data.labelled import find_labelled, read_mask
from aha.errors import AhaError
from aha.learned.explainer import ExplainerConfig
from aha.methods import METHODS, load_method
from aha.metrics.protocols import load_protocols
from aha.models import TargetModel, load_model
from aha.models.loading.weights import read_weights
from aha.models.scores import load_score
from aha.perturb.partitions import PARTITIONS
from aha.perturb.references import REFERENCES, load_reference
from aha.results.saved_maps import SavedMap
from fakes import SIZE, TinyCNN

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
            ["model", "data", "methods", "metrics", "weights", "seed", "limit", "targets", "input_size", "x"]
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


# Data sets


def looked_at(text: str, model: TargetModel) -> None:
    """All images of a data set, with their pictures and masks."""
    for image in find_data(text, model):
        holds(lambda image=image: read_image(image.content(), 10**6))  # type: ignore[misc]
        if image.mask is not None:
            holds(image.true_mask)


@pytest.fixture(scope="module")
def model() -> TargetModel:
    return load_model(TinyCNN(classes=37).eval(), input_size=SIZE, mean=[0.5] * 3, std=[0.5] * 3)


coco_values = st.one_of(
    json_values, st.sampled_from([60_000, 10**18, -1, [[1, 1, 3, 1, 3, float("nan")]], {"counts": [10**15]}, "x.jpg"])
)


@bounded
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7), coco_values), min_size=1, max_size=3))
def test_coco(tmp_path: Path, model: TargetModel, changes: list[tuple[int, int, Any]]) -> None:
    annotation: dict[str, Any] = {"image_id": 1, "category_id": 9, "area": 6, "bbox": [1, 1, 2, 1], "iscrowd": 0}
    image: dict[str, Any] = {"id": 1, "file_name": "x.jpg", "height": 4, "width": 6}
    content: dict[str, Any] = {"images": [image], "annotations": [annotation], "categories": [{"id": 9}]}
    annotation["segmentation"] = [[1, 1, 3, 1, 3, 2, 1, 2]]
    for part, entry, value in changes:
        chosen = (annotation, annotation, image, content)[part]
        chosen[list(chosen)[entry % len(chosen)]] = value
    for folder in ("annotations", "val2017"):
        (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / "val2017" / "x.jpg").write_bytes(picture("JPEG"))
    (tmp_path / "annotations" / "instances_val2017.json").write_text(json.dumps(content))
    holds(lambda: looked_at(f"coco:{tmp_path}", model))


LISTS = {
    "pets": {"annotations/test.txt": "#\na 1 1 1\nb 2 1 1\n", "trimaps/a.png": picture("PNG").decode("latin-1")},
    "imagenet": {"labels.csv": "file,class_index\na.jpg,1\n", "boxes.csv": "file,x0,y0,x1,y1\na.jpg,1,1,3,3\n"},
    "imagenet ": {"LOC_val_solution.csv": "ImageId,PredictionString\na,n01440764 1 2 3 4\n"},
    "imagenet  ": {"ILSVRC2012_validation_ground_truth.txt": "1\n", "meta.mat": "MATLAB 5.0 MAT-file" + " " * 200},
    "csv": {"list.csv": "file,label,mask,x0,y0,x1,y1\nimages/a.jpg,1,trimaps/a.png,1,1,3,3\nimages/a.jpg,1,,1,1,2,2\n"},
}


@pytest.mark.parametrize("kind", LISTS)
def test_lists_of_data_sets(tmp_path: Path, model: TargetModel, kind: str) -> None:
    wholes = {name: text.encode("latin-1") for name, text in LISTS[kind].items()}

    @bounded
    @given(st.fixed_dictionaries({name: st.one_of(st.just(whole), damaged(whole)) for name, whole in wholes.items()}))
    def check(files: dict[str, bytes]) -> None:
        for name, content in {**files, "images/a.jpg": picture("JPEG")}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(content)
        place = tmp_path / "list.csv" if kind == "csv" else tmp_path
        holds(lambda: looked_at(f"{kind.strip()}:{place}", model))

    check()


def test_shards(tmp_path: Path, model: TargetModel) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in (("a.png", picture("PNG")), ("a.cls", b"3"), ("b.png", picture("PNG")), ("b.json", b"{}")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))

    @bounded
    @given(damaged(buffer.getvalue()), st.integers(0, 99), st.integers(0, 10**30))
    def check(content: bytes, first: int, last: int) -> None:
        (tmp_path / "x.tar").write_bytes(content)
        holds(lambda: looked_at(f"shards:{tmp_path / 'x.tar'}", model))
        holds(lambda: looked_at(f"shards:{tmp_path}/y-{{{first}..{last}}}.tar", model))

    check()


# Maps


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_saved_maps(tmp_path: Path, suffix: str) -> None:
    buffer = io.BytesIO()
    (np.save if suffix == ".npy" else np.savez)(buffer, np.ones((3, 4)))

    @bounded
    @given(damaged(buffer.getvalue()))
    def check(content: bytes) -> None:
        (tmp_path / f"a{suffix}").write_bytes(content)
        holds(SavedMap(tmp_path / "a.png", "m", None, tmp_path / f"a{suffix}").read)

    check()


# What a run depends on


IMAGES, METHODS_RUN = ("a", "b"), ("m", "n")
events = st.lists(
    st.tuples(
        st.sampled_from(["label", "boxes", "mask", "content"]),  # what changes
        st.sampled_from(IMAGES),
        st.integers(0, 2),  # and what it becomes
        st.sets(st.sampled_from(METHODS_RUN)),  # which methods are run afterwards
        st.sets(st.sampled_from(IMAGES), min_size=1),
        st.floats(0, 4e9),  # what the clock says
    ),
    max_size=8,
)


@bounded
@given(events)
def test_truths_and_clocks(events: list[Any]) -> None:
    """What counts was found in the state of things that its image was last seen in, whatever the clock says."""
    state = {image: dict.fromkeys(("label", "boxes", "mask", "content"), 0) for image in IMAGES}
    seen: dict[str, dict[str, int]] = {}
    found: dict[tuple[str, str], dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / ROWS).mkdir()
        for what, changed, value, methods, images, clock in events:
            state[changed][what] = value
            with RunStore(Path(place)) as store:
                cells = [cell_of(method, image, state[image], clock) for method in methods for image in images]
                store.add(cells)
            for method in methods:
                for image in images:
                    seen[image] = found[method, image] = dict(state[image])
        expected = {about for about, facts in found.items() if facts == seen[about[1]]}
        assert {(cell["method"], cell["image"]) for cell in read_cells(Path(place))} == expected


def cell_of(method: str, image: str, facts: dict[str, int], clock: float) -> Cell:
    work = work_of("model", "digest", method, "protocol", "top1", image)
    return {
        "key": f"{work}-{result_key(sorted(facts.items()))}",
        "model": "model",
        "digest": "digest",
        "method": method,
        "protocol": "protocol",
        "asked": "top1",
        "image": image,
        "label": facts["label"],
        "found": [],
        "failures": [],
        "version": "0",
        "made": clock,
        "content": str(facts["content"]),
        "state": "s",
        "truth": {"boxes": str(facts["boxes"]), "mask": str(facts["mask"])},
    }


# Visitors


@bounded
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.booleans()), max_size=20))
def test_uploads_that_hang_up(asked: list[tuple[str, str, bool]]) -> None:
    """What is given up before its turn is never begun; the rest is, address by address."""
    pytest.importorskip("starlette")
    from aha.web.reading import Asker, Readers

    readers, go_on, begun = Readers(1, "fuzz"), threading.Event(), list[int]()
    first = readers.ask(lambda: go_on.wait(60))
    futures = [
        readers.ask(lambda number=number: begun.append(number), Asker(address, visitor))
        for number, (address, visitor, _) in enumerate(asked)
    ]
    while not first.running():
        time.sleep(0.001)
    stays = [number for number, (_, _, hangs_up) in enumerate(asked) if not (hangs_up and futures[number].cancel())]
    go_on.set()
    for number in stays:
        futures[number].result(60)
    assert sorted(begun) == stays
    for place, number in enumerate(begun):
        own = [other for other in begun[:place] if asked[other][0] == asked[number][0]]
        for address in {asked[other][0] for other in begun[place:]}:
            before = sum(asked[other][0] == address for other in begun[:place])
            ahead = sum(hangs_up for other, _, hangs_up in asked if other in (address, asked[number][0]))
            assert len(own) - before <= 1 + ahead  # turns of those who left count as well
