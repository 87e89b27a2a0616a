"""Damage as disks, editors and people do it, drawn from a seed."""

from __future__ import annotations

import random
from pathlib import Path

_REPLACEMENTS = (b"", b"{}", b"{}\n", b"null", b"[]\n", b"\n\n", b'{"key":"a-b"}\n', "ä".encode("latin-1"), b"\0" * 64)


def damage(path: Path, chance: random.Random) -> str:
    """Changes a file in one place, or all of it; says how."""
    content = path.read_bytes()
    size = len(content)
    start = chance.randrange(size) if size else 0
    end = min(size, start + chance.choice((1, 1, 2, 8, 60, 1000)))
    lines = content.splitlines(keepends=True)
    place = chance.randrange(len(lines)) if lines else 0
    kinds = {
        "flipped": lambda: (
            content[:start] + bytes([content[start] ^ (1 << chance.randrange(8))]) + content[start + 1 :]
        ),
        "cut": lambda: content[:start],
        "cut at a line": lambda: b"".join(lines[:place]),
        "deleted": lambda: content[:start] + content[end:],
        "inserted": lambda: content[:start] + chance.randbytes(end - start) + content[start:],
        "zeroed": lambda: content[:start] + b"\0" * (end - start) + content[end:],
        "another digit": lambda: _another_digit(content, chance),
        "doubled line": lambda: b"".join([*lines[: place + 1], *lines[place:]]),
        "swapped lines": lambda: b"".join([*lines[place:], *lines[:place]]),
        "other encoding": lambda: content.decode("latin-1").encode("utf-16"),
        "replaced": lambda: chance.choice(_REPLACEMENTS),
    }
    kind = chance.choice(list(kinds))
    path.write_bytes(kinds[kind]() if size or kind == "replaced" else b"x")
    return f"{path.name}: {kind} at {start}"


def _another_digit(content: bytes, chance: random.Random) -> bytes:
    """The most treacherous damage: everything can still be read."""
    places = [place for place, byte in enumerate(content) if byte in b"0123456789"]
    if not places:
        return content + b"0"
    place = chance.choice(places)
    return content[:place] + (b"%d" % ((content[place] - 48 + chance.randrange(1, 10)) % 10)) + content[place + 1 :]
