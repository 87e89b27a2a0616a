"""Commands that need no model answer without importing torch, and say the same as the real things would."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import timm

from aha import catalogue
from aha.core import model_names
from aha.core import registry_file as declared
from aha.core.model_names import check_model_name, names_of
from aha.core.registry_file import check_method, check_metric, check_model, check_score
from aha.core.spec import Spec, written
from aha.errors import SpecError, UnknownName
from aha.methods import METHODS, load_method
from aha.metrics import METRICS
from aha.metrics.protocols import PROTOCOLS, load_protocols
from aha.models import load_model
from aha.models.loading.sources import SOURCES, list_sources, split_spec
from aha.models.scores import SCORES, load_score
from aha.perturb.partitions import PARTITIONS
from aha.perturb.references import REFERENCES

HEAVY = ("torch", "torchvision", "timm", "numpy", "matplotlib")

RUN = """
import json, sys
arguments, heavy = json.loads(sys.argv[1])
sys.argv = ["aha", *arguments]
try:
    from aha.cli import main
    main()
except SystemExit as end:
    code = end.code
print(json.dumps([code, [name for name in heavy if name in sys.modules]]), file=sys.stderr)
"""


def run(*arguments: str, **environment: str) -> tuple[int, list[str], str]:
    """Exit code, heavy modules that were imported, and all that was said."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps([arguments, HEAVY])],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=True,
    )
    *said, last = done.stderr.strip().splitlines()
    code, heavy = json.loads(last)
    return code, heavy, done.stdout + "\n".join(said)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"import sys, aha; assert not set({HEAVY!r}) & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


OWN_MODULE = """
import sys, torch, aha
from torch import nn

network = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)).eval()
aha.explain(network, torch.randn(1, 3, 32, 32), ["grad_cam", "integrated_gradients(steps=2)"], progress=False)
print([name for name in ("timm", "torchvision", "transformers", "scipy", "matplotlib", "jinja2")
       if name in sys.modules])
"""


def test_a_module_of_ones_own_is_explained_without_other_libraries() -> None:
    done = subprocess.run([sys.executable, "-c", OWN_MODULE], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_command_imports_no_other() -> None:
    code = RUN.replace("heavy if", "sorted(sys.modules) if name.startswith('aha.cli.') and")
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps([["list", "scores"], []])], capture_output=True, text=True, check=True
    )
    _, imported = json.loads(done.stderr.strip().splitlines()[-1])
    assert "aha.cli.listing" in imported
    assert not {"aha.cli.bench", "aha.cli.train", "aha.cli.explain", "aha.cli.serve"} & set(imported)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--help",), "explain"),
        (("explain", "--help"), "--method"),
        (("list", "methods"), "integrated_gradients"),
        (("list", "metrics", "--json"), "deletion"),
        (("list", "protocols"), "224 steps"),
        (("list", "scores"), "softmax"),
        (("list", "references"), "imputed"),
        (("list", "models"), "torchvision:vit_b_16"),
        (("list", "models", "resnet18", "--source", "timm"), "timm:resnet18d"),
    ],
)
def test_questions_are_answered_without_torch(arguments: tuple[str, ...], said: str) -> None:
    code, heavy, text = run(*arguments)
    assert (code, heavy) == (0, [])
    assert said in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--method", "grad_cm"), "did you mean grad_cam"),
        (("--method", "smooth(gradient, m=3)"), "smooth has no parameter 'm'"),
        (("--method", "rise(n=0)"), "n must be a whole number of at least 1, not 0"),
        (("--score", "sofmax"), "did you mean softmax"),
        (("--model", "resnet50"), "write SOURCE:NAME, such as timm:resnet50; sources are clip, demo, hf, python, timm"),
        (("--model", "timm:resnt18"), "unknown model timm:resnt18; did you mean resnet18"),
        (("--model", "torchvision:vit_b16"), "unknown model torchvision:vit_b16; did you mean vit_b_16"),
        (("--model", "demo:efficientnet"), "unknown model demo:efficientnet; did you mean efficientnet_lite0"),
        ((), "nowhere.jpg does not exist"),
        (("https://example.org/a/cat.jpg",), "https://example.org/a/cat.jpg is an address, not a file"),
    ],
)
def test_errors_in_texts_are_found_without_torch(options: tuple[str, ...], said: str) -> None:
    place = () if options and "://" in options[0] else ("nowhere.jpg",)
    code, heavy, text = run("explain", *place, "--model", "timm:resnet18", "--out", "nowhere", *options)
    assert (code, heavy) == (1, [])
    assert said in text


@pytest.mark.parametrize(
    "command",
    [("recommend",), ("bench", "--method", "grad_cam", "--out", "run"), ("train", "--out", "run")],
    ids=lambda command: command[0],
)
def test_data_that_are_not_there_are_missed_without_torch(command: tuple[str, ...]) -> None:
    code, heavy, text = run(*command, "--model", "timm:resnet18", "--data", "nowhere")
    assert (code, heavy) == (1, [])
    assert "nowhere does not exist" in text


@pytest.mark.parametrize("command", [("report",), ("compare", "."), ("merge", "--out", "merged")])
def test_a_run_that_is_not_there_is_missed_without_torch(command: tuple[str, ...]) -> None:
    code, heavy, text = run(*command, "nowhere")
    assert (code, heavy) == (1, [])
    assert "nowhere is not the folder of a run" in text


@pytest.mark.parametrize("option", ["--run", "--images", "--explainer", "--weights"])
def test_what_the_explorer_is_to_show_is_missed_without_torch(option: str) -> None:
    code, heavy, text = run("serve", option, "nowhere")
    assert (code, heavy) == (1, [])
    assert "nowhere does not exist" in text


def test_names_are_completed_without_torch() -> None:
    words = {"COMP_WORDS": "aha explain --method grad_c", "COMP_CWORD": "3", "_AHA_COMPLETE": "complete_bash"}
    code, heavy, text = run(**words)
    assert (code, heavy) == (0, [])
    assert text.split() == ["grad_cam", "grad_cam_pp"]


@pytest.mark.parametrize(
    ("words", "place", "completed"),
    [
        ("aha explain --model ti", 3, ["timm:"]),
        ("aha explain --model timm : resnet18", 5, ["resnet18", "resnet18d"]),  # as bash cuts it at the colon
        ("aha explain --model torchvision : vit_b", 5, ["vit_b_16", "vit_b_32"]),
        ("aha explain --model demo :", 4, ["efficientnet_lite0"]),
        ("aha explain --model timm : resnet18 --method grad_c", 7, ["grad_cam", "grad_cam_pp"]),
    ],
)
def test_models_are_completed_without_torch(words: str, place: int, completed: list[str]) -> None:
    asked = {"COMP_WORDS": words.replace(" ", "\n"), "COMP_CWORD": str(place), "_AHA_COMPLETE": "complete_bash"}
    code, heavy, text = run(**asked)
    assert (code, heavy, text.split()) == (0, [], completed)


@pytest.mark.parametrize("source", ["timm", "torchvision", "demo"])
def test_the_names_that_are_read_are_those_of_the_library_in_its_order(source: str) -> None:
    assert names_of(source) == list_sources()[source]


def test_the_list_of_models_is_the_same_with_and_without_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    with_libraries = catalogue.models()
    monkeypatch.delitem(sys.modules, "aha.models.loading.sources")
    assert catalogue.models() == with_libraries


def test_names_that_are_marked_in_another_way_are_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = catalogue.models("timm")
    texts = ["@register_model\ndef one(): ...\n", "@register_model(name='two')\ndef another(): ...\n"]
    monkeypatch.setattr(model_names, "_texts", lambda source: texts)
    names_of.cache_clear()
    try:
        assert names_of("timm") is None
        check_model_name("timm:two")
        monkeypatch.delitem(sys.modules, "aha.models.loading.sources")
        assert catalogue.models("timm") == expected
    finally:
        names_of.cache_clear()


def test_names_that_a_library_accepts_without_listing_them_pass() -> None:
    former = timm.models.get_deprecated_models()
    assert former
    for name in former:
        check_model_name(f"timm:{name}")


@pytest.mark.parametrize("spec", ["timm:resnt18", "timm:resnt18.a1_in1k", "torchvision:vit_b16", "demo:x", "timm:%%"])
def test_an_unknown_model_is_refused_in_the_words_of_loading_it(spec: str) -> None:
    said = []
    for read in (check_model_name, load_model):
        with pytest.raises(UnknownName) as caught:
            read(spec)
        said.append(str(caught.value))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("kind", "real"),
    [("method", METHODS), ("metric", METRICS), ("reference", REFERENCES), ("partition", PARTITIONS)],
)
def test_outlines_have_the_parameters_of_the_real_classes(kind: declared.Kind, real: object) -> None:
    outlines = declared.declared(kind)
    own = [name for name in real if real[name].__module__.startswith("aha.")]  # type: ignore[attr-defined, index]
    assert list(outlines) == own
    for name in own:
        outline, cls = outlines[name], real[name]  # type: ignore[index]
        assert issubclass(outline, Spec)
        assert [(f.name, _text(f)) for f in fields(outline)] == [(f.name, _text(f)) for f in fields(cls)]


def _text(field: object) -> str:
    factory = field.default_factory  # type: ignore[attr-defined]
    return written(factory() if callable(factory) else field.default)  # type: ignore[attr-defined]


def test_the_file_is_what_the_registries_hold() -> None:
    script = Path(__file__).parents[2] / ".ci" / "registry.py"
    if not script.is_file():
        pytest.skip("the script is part of the source tree, not of the package")
    text: str = runpy.run_path(str(script))["registry_text"]()
    assert declared.FILE.read_text(encoding="utf-8") == text, "run `make registry`"


def test_the_catalogue_is_the_same_with_and_without_the_real_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    with_real = [catalogue.methods(), catalogue.metrics(), catalogue.protocols(), catalogue.scores()]
    monkeypatch.setattr(catalogue, "_registry", declared.declared)
    assert [catalogue.methods(), catalogue.metrics(), catalogue.protocols(), catalogue.scores()] == with_real
    assert list(declared.declared("protocol")) == list(PROTOCOLS)
    assert list(declared.declared("score")) == list(SCORES)
    assert list(declared.declared("model source")) == list(SOURCES)


@pytest.mark.parametrize(
    ("check", "load", "text"),
    [
        (check_method, load_method, "no_such_method"),
        (check_method, load_method, "grad_cam(layer=0)"),
        (check_method, load_method, "grad_cam(layer=1.5)"),
        (check_method, load_method, "transition_attention(steps=1)"),  # checked by a function of another file
        (check_method, load_method, "occlusion(reference=blak)"),
        (check_method, load_method, "lime(parts=patches(grid=0))"),
        (check_method, load_method, "smooth(smooth(grad_cam(layer=1)))"),
        (check_method, load_method, "var"),
        (check_method, load_method, "grad_cam("),
        (check_method, load_method, "deletion"),
        (check_metric, load_protocols, "quik"),
        (check_metric, load_protocols, "deletion(steps=1)"),
        (check_metric, load_protocols, "deletion(references=(blak,))"),
        (check_score, load_score, "nothing"),
        (check_model, split_spec, "timm:"),
        (check_model, split_spec, "tmm:resnet18"),
    ],
)
def test_a_wrong_text_is_refused_in_the_same_words(check: object, load: object, text: str) -> None:
    said = []
    for read in (check, load):
        with pytest.raises(SpecError) as caught:
            read(text)  # type: ignore[operator]
        said.append((type(caught.value), str(caught.value)))
    assert said[0] == said[1]


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].family != "wrapper"])
def test_every_method_passes_by_its_name(name: str) -> None:
    check_method(name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("grad-cam", "grad_cam"),
        ("gradcam", "grad_cam"),
        ("GradCAM", "grad_cam"),
        ("GradCAMPlusPlus", "grad_cam_pp"),
        ("ig", "integrated_gradients"),
        ("IG(steps=3)", "integrated_gradients(steps=3)"),
        ("IntegratedGradients", "integrated_gradients"),
        ("integrated-gradients(steps=3, reference=zeros_normalised)", "integrated_gradients(steps=3)"),
        ("smooth(grad-cam(layer=-2), n=3)", "smooth(grad_cam(layer=-2), n=3)"),
        ("grad-cam(layer='down-sample')", "grad_cam(layer='down-sample')"),
        ("Saliency", "gradient"),
    ],
)
def test_methods_are_found_as_people_spell_them(text: str, name: str) -> None:
    check_method(text)
    assert str(load_method(text)) == name


@pytest.mark.parametrize("text", ["quick", "aha", "deletion", "deletion(steps=8, references=(black, blur(sigma=2.0)))"])
def test_right_metrics_pass(text: str) -> None:
    check_metric(text)
