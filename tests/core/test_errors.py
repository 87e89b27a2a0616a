"""Messages are lines that people read."""

from __future__ import annotations

import pytest

import aha
from aha.errors import AhaError, MissingExtra


def test_a_message_is_one_line_of_bounded_length() -> None:
    assert str(AhaError("one\n  two\tthree")) == "one two three"
    long = str(AhaError(f"cannot read {'x' * 100_000}; write it shorter"))
    assert len(long) <= 1400 and long.startswith("cannot read x") and long.endswith("; write it shorter")
    assert MissingExtra("the explorer", "web").extra == "web"


def test_what_a_caller_wrote_is_not_echoed_in_full() -> None:
    with pytest.raises(AhaError) as caught:
        aha.load_method("gradient(" + "x" * 5000 + ")")
    assert len(str(caught.value)) <= 1400
