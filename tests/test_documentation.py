"""What the documentation says works: its Python is run, its commands are parsed, its diagram is compared.

The blocks of a page run in order, in one namespace, in a folder with the files that pages speak of. There is no network
and little time, so heavy things have stand-ins, made here:

- every model that a page names (`timm:resnet50`, the demo's too) is timm's miniature `test_resnet` at 64 pixels, or
  `test_vit` for `hf:` and `clip:`, with random weights and ImageNet's class names; `network` and `my_module` are such
  networks as well;
- models of transformers that a page holds in memory are miniatures too;
- photographs are small random pictures;
- `train` takes two steps, whatever the page asks for, and the hub accepts everything.

A block that cannot be run here carries a comment with the reason in the line before it, `<!-- not run: REASON -->`; one
that needs a package which tests do not install, `<!-- needs: PACKAGE -->`.
"""

from __future__ import annotations

import re
import shlex
import socket
import textwrap
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import timm
import torch
import typer
from torch.utils.data import DataLoader, TensorDataset

import aha
from aha.cli import app
from aha.learned import settings
from aha.methods import METHODS
from aha.models.loading import load
from aha.models.loading.metadata import imagenet_names
from aha.models.loading.preprocessing import Preprocessing
from aha.models.loading.sources import Loaded
from aha.models.loading.texts import with_texts
from command_line import picture
from test_layers import IMPORTERS, LAYERS
from two_towers import tiny_classifier, tiny_clip, tiny_processor

ROOT = Path(__file__).parents[1]
if not (ROOT / "docs").is_dir():
    pytest.skip("the documentation is part of the source tree, not of the package", allow_module_level=True)

SIZE = 64
MOST_NOT_RUN = 1
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/llms.txt")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_FENCE = re.compile(
    r"(?:^ *<!-- (?P<mark>not run|needs): (?P<reason>[^\n]+?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str
    mark: str
    reason: str


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            str(page.relative_to(ROOT)),
            text.count("\n", 0, found.start("text")) + 1,
            found["language"],
            textwrap.dedent(found["text"]),
            found["mark"] or "",
            found["reason"] or "",
        )
        for found in _FENCE.finditer(text)
    ]


BLOCKS = {str(page.relative_to(ROOT)): blocks_of(page) for page in PAGES}
PYTHON = {page: own for page, blocks in BLOCKS.items() if (own := [b for b in blocks if b.language == "python"])}


def commands() -> Iterator[tuple[str, str]]:
    """Each command in the console blocks with its place; continued lines are joined, remarks cut off."""
    for blocks in BLOCKS.values():
        for block in blocks:
            if block.language == "console":
                for line in block.text.replace("\\\n", " ").splitlines():
                    if command := re.sub(r"\s+#.*", "", line).strip():
                        yield f"{block.page}:{block.line}", command


COMMANDS = list(commands())


def test_the_page_of_the_command_line_has_every_command() -> None:
    group: Any = typer.main.get_command(app)
    shown = {words[1] for place, command in COMMANDS if "cli.md" in place and (words := command.split())[0] == "aha"}
    assert set(group.commands) - shown == set()


# Python


def miniature() -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=1000).eval()


def miniature_vit() -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.create_model("test_vit", num_classes=1000, img_size=SIZE).eval()


def stand_in(spec: str, request: Any) -> Loaded:
    """Any model that a page names; with texts, their embeddings are random."""
    preprocessing = Preprocessing((SIZE, SIZE), (0.5,) * 3, (0.5,) * 3)
    if request.texts is not None:
        named = with_texts(miniature_vit(), {text: torch.randn(1000) for text in request.texts})
        return Loaded(named, preprocessing, list(request.texts))
    return Loaded(miniature_vit() if spec.startswith("hf:") else miniature(), preprocessing, imagenet_names())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with all that pages speak of, without a network, and with stand-ins for heavy things."""
    (tmp_path / "photos").mkdir()
    for seed, name in enumerate(("cat.jpg", "lynx.jpg", "a.jpg", "b.jpg", "photos/1.jpg", "photos/2.jpg")):
        picture(tmp_path / name, seed, (80, 70))
    rows = [f"{name},{label}\n" for label, name in enumerate(("photos/1.jpg", "photos/2.jpg", "a.jpg", "b.jpg"))]
    (tmp_path / "train.csv").write_text("file,label\n" + "".join(rows))
    (tmp_path / "images.csv").write_text("file,label\n" + "".join(rows[:2]))

    def refuse(*args: Any, **options: Any) -> Any:
        raise AssertionError("the documentation reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("AHA_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(load, "_from_spec", stand_in)
    brief = ["steps=2", "validation_images=1", "validation_steps=2", "batch_size=2", "perturbations=2"]
    original = settings.load_settings
    monkeypatch.setattr(settings, "load_settings", lambda preset, changes=(): original(preset, [*changes, *brief]))
    monkeypatch.setattr(aha.Explainer, "push_to_hub", lambda self, *args, **options: "accepted")
    monkeypatch.chdir(tmp_path)
    before = dict(METHODS._things)
    yield tmp_path
    METHODS._things.clear()
    METHODS._things.update(before)


def prepared(page: str) -> dict[str, Any]:
    """Names that a page takes for granted."""
    inputs, labels = torch.randn(2, 3, SIZE, SIZE), torch.tensor([1, 2])
    names: dict[str, Any] = {
        "network": miniature(),
        "my_module": miniature(),
        "loader": DataLoader(TensorDataset(inputs, labels), batch_size=2),
        "inputs": inputs,
        "classes": labels,
    }
    if page == "docs/tasks/clip.md":
        names |= {"clip": tiny_clip(), "processor": tiny_processor()}
    if page == "docs/tasks/huggingface.md":
        names |= {"classifier": tiny_classifier(), "image_processor": tiny_processor().image_processor}
    if page == "docs/deploy.md":  # begins where training has ended
        chosen = settings.load_settings("smoke", ["evidence=forward"])
        aha.train(aha.load_model("timm:resnet18"), "train.csv", "run", settings=chosen)
    return names


@pytest.mark.parametrize("page", PYTHON)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_python_runs(page: str, folder: Path) -> None:
    namespace, missing = prepared(page), []
    for block in PYTHON[page]:
        if block.mark == "not run":
            continue
        if block.mark == "needs" and find_spec(block.reason) is None:
            missing.append(block.reason)
            continue
        # As many line breaks before the code as on the page: then an error names the page's line.
        exec(compile("\n" * (block.line - 1) + block.text, str(ROOT / page), "exec"), namespace)
    if missing:
        pytest.skip(f"all but the blocks that need {', '.join(missing)} were run")


def test_what_is_not_run_says_why() -> None:
    blocks = [block for own in PYTHON.values() for block in own]
    assert len(blocks) > 20
    left_out = [block for block in blocks if block.mark == "not run"]
    assert all(len(block.reason.split()) > 3 for block in left_out)
    assert len(left_out) <= MOST_NOT_RUN


def test_every_block_has_a_language() -> None:
    known = {"python", "console", "toml", "text", ""}
    assert {block.language for blocks in BLOCKS.values() for block in blocks} <= known
    # Only trees of files and folders may go without.
    for blocks in BLOCKS.values():
        for block in blocks:
            assert block.language or "import " not in block.text, f"{block.page}:{block.line}"


def test_plans_are_read() -> None:
    from aha.bench.plan import make_plans

    plans = [block for blocks in BLOCKS.values() for block in blocks if block.language == "toml"]
    assert plans
    for block in plans:
        assert make_plans(tomllib.loads(block.text), source=block.page)


# Commands


def aha_arguments(command: str) -> list[str] | None:
    """What follows `aha`, also behind a launcher."""
    words = shlex.split(command)
    if words[0] == "aha":
        return words[1:]
    if words[0] in ("torchrun", "accelerate") and "aha" in words:
        return words[words.index("aha") + 1 :]
    return None


def is_synopsis(command: str) -> bool:
    """Whether a command is a pattern, with words in capitals for what is to be filled in."""
    return bool(re.search(r"\[|\b[A-Z]{3,}\b(?!\.)|\.\.\.", command))


@pytest.mark.parametrize(("place", "command"), COMMANDS, ids=[f"{p} {c[:40]}" for p, c in COMMANDS])
def test_command_exists_with_all_its_options(place: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    synopsis = is_synopsis(command)
    arguments = aha_arguments(re.sub(r"[\[\]]|\.\.\.", " ", command) if synopsis and "[" in command else command)
    if arguments is None:
        first, second, *rest = shlex.split(command)
        if first == "make":
            assert re.search(rf"^{second}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        elif (first, second) == ("pip", "install"):
            name, _, extras = rest[-1].partition("[")
            assert name == project["name"]
            assert set(extras.strip("]").split(",")) <= project["optional-dependencies"].keys()
        else:
            assert first == "python" and (ROOT / second).is_file()
        return
    group: Any = typer.main.get_command(app)
    name, *words = arguments
    assert name in group.commands, f"{place}: there is no `aha {name}`"
    chosen = group.commands[name]
    known = {option for parameter in chosen.params for option in (*parameter.opts, *parameter.secondary_opts)}
    unknown = [word for word in words if word.startswith("--") and word not in known | {"--help"}]
    assert unknown == [], f"{place}: `aha {name}` has no {', '.join(unknown)}"
    if not synopsis and "--help" not in words:
        chosen.make_context(name, words)  # refuses missing arguments and values of the wrong type


# The diagram


def test_files_that_are_named_exist() -> None:
    invented = {"src/aha/methods/gradients/my_method.py"}  # what a reader is to write
    named = {
        (page, path) for page in PAGES for path in re.findall(r"`([a-z_]+/[a-z_/]*\.py)`", page.read_text("utf-8"))
    }
    places = (ROOT, ROOT / "src" / "aha")
    gone = [(page.name, path) for page, path in named if not any((place / path).is_file() for place in places)]
    assert len(named) > 50 and [one for one in gone if one[1] not in invented] == []


def test_the_tree_is_that_of_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    from make_tree import filled

    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert filled(page) == page, "run `make tree`"


def test_diagram_shows_the_layers() -> None:
    """`test_layers.py` compares these layers with every import, so a picture that equals them is true."""
    (diagram,) = (block for block in BLOCKS["docs/architecture.md"] if block.language == "text")
    drawn = [set(line.split()) for line in diagram.text.splitlines()]
    assert drawn == [set(line.split()) for line in reversed(LAYERS.strip().splitlines())]


def test_importers_are_listed() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+?) \| (.+?) \|$", text, re.MULTILINE)
    listed = {
        library: set(re.findall(r"`(\w+)`", units)) for row, units in rows for library in row.strip("`").split("`, `")
    }
    assert listed == IMPORTERS


def test_every_guide_has_a_picture() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    guides = nav.partition("  - Measured:")[0]  # what follows is tables, references and the project itself
    pages = re.findall(r": ([\w/]+\.md)$", guides, re.MULTILINE)
    assert "tasks/clip.md" in pages and "aha.md" in pages
    without = [page for page in pages if not re.search(r"!\[.+\]\(|<!-- generated: gallery", _text_of(page))]
    assert without == []
    shown = [(page, image) for page in pages for image in re.findall(r"!\[.+\]\(([^)]+)\)", _text_of(page))]
    assert [one for one in shown if not (ROOT / "docs" / one[0]).parent.joinpath(one[1]).is_file()] == []


def _text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")
