"""Writes `docs/llms.txt`, the ten calls that matter, from the code blocks of the pages: `make llms`.

The blocks are taken as they stand there, where `tests/test_documentation.py` runs them; it also runs the ten in a row.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent
OUT = DOCS / "llms.txt"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_HEAD = """\
# Aha

> Shows which pixels an image classifier relies on, and measures how far to trust the answer. A Python library, a
> command line (`aha --help`) and a web explorer for models of timm, torchvision, Hugging Face, CLIP or PyTorch.

Install it with `pip install "aha-attribution[demo]"` and check it with `aha doctor`. A method is a text, parameters
included, such as `grad_cam`, `smooth(grad_cam, n=10)` or `rise(n=4000)`; `aha list methods --model SPEC` names
those that fit a model. An error is an `aha.AhaError` with one line that says what is wrong and what to do.

## Ten calls

Each block is copied from the page named below it, where it is tested.
"""


class Call(NamedTuple):
    """A call: what it is for, its page, and words by which its block is found there."""

    title: str
    page: str
    words: str


CALLS = (
    Call("Explain an image", "index.md", "explanation.overlay().save"),
    Call("Can the map be trusted?", "index.md", "cards[0].sentence"),
    Call("Measure several methods on your images", "index.md", "scores.to_markdown()"),
    Call("Find the best method within a budget", "recommend.md", "recommendation.sentence"),
    Call("Load any model", "models.md", 'load_model("torchvision:'),
    Call("Explain a module of your own", "tasks/own_module.md", "aha.explain(my_module, inputs"),
    Call("Choose the classes", "methods.md", 'target="top5"'),
    Call("Explain CLIP, with texts as classes", "tasks/clip.md", 'load_model("clip:'),
    Call("Explain a folder that does not fit in memory", "scale.md", "aha.explain_batches"),
    Call("Train AHA for your model: maps in a single pass", "train.md", "aha.train(model"),
)


def llms_text() -> str:
    """The whole file."""
    return "\n".join([_HEAD, *(_section(number, call) for number, call in enumerate(CALLS, 1))])


def _section(number: int, call: Call) -> str:
    return f"### {number}. {call.title}\n\n```python\n{_block(call)}```\n\nMore: [{call.page}]({call.page})\n"


def _block(call: Call) -> str:
    """The one block of the page that has the words."""
    found = [block for block in _BLOCK.findall((DOCS / call.page).read_text(encoding="utf-8")) if call.words in block]
    if len(found) != 1:
        raise SystemExit(
            f"docs/{call.page} has {len(found)} blocks with {call.words!r}; name others in docs/make_llms.py"
        )
    return found[0]


if __name__ == "__main__":
    OUT.write_text(llms_text(), encoding="utf-8")
