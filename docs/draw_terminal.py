"""Draws `images/terminal.svg`: a picture explained and methods measured, as a terminal shows it.

    python docs/draw_terminal.py

The commands are run as they are written, on a copy of the photographs that come with scikit-image.
"""

from __future__ import annotations

import io
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from aha.demo import photographs

OUT = Path(__file__).parent / "images" / "terminal.svg"
MODEL = "--model demo:efficientnet_lite0"
COMMANDS = (
    f"aha explain photos/coffee.png {MODEL} --method grad_cam --card --out explained",
    f"aha evaluate photos/ {MODEL} --method grad_cam --method aha --method random_map "
    "--metrics 'ins_del(steps=10)' --out measured",
    f"aha explain photos/coffee.png {MODEL} --method grad_cm",
)
WIDTH = 116
# Without fonts from elsewhere: every reader has one of equal widths.
FORMAT = re.sub(r"<!--.*?-->|@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def main() -> None:
    """Runs the commands and draws what they say."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "photos").mkdir()
        for photograph in photographs(["coffee.png", "chelsea.png", "rocket.jpg"]):
            shutil.copy(photograph, Path(folder) / "photos")
        OUT.write_text(drawn({command: _said(command, folder) for command in COMMANDS}), encoding="utf-8")


def drawn(said: Mapping[str, str]) -> str:
    """Commands and their answers, as a terminal in an SVG."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    for command, answer in said.items():
        console.print(Text("$ ", style="green") + Text(command, style="bold"))
        console.print(Text.from_ansi(answer))
        console.print()
    made = console.export_svg(title="aha", code_format=FORMAT, unique_id="terminal")
    return made.replace("Fira Code", "monospace")


def _said(command: str, folder: str) -> str:
    words = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip()  # progress goes to stderr, and so does what is wrong


if __name__ == "__main__":
    main()
