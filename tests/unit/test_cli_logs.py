"""`plugml logs -f`: what is written between the look back and the first look forward is not lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugml.cli.logs import _new_lines, _opened, _print


def test_nothing_falls_between_the_past_and_what_follows(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "s0.log"
    log.write_text("one\n")
    with _opened({"s0": log, "s1": tmp_path / "not-there.log"}) as opened:
        _print(opened)
        assert capfd.readouterr().out == "one\n"
        with log.open("a") as file:
            file.write("two\nthr")
        rest = {"s0": b""}
        assert list(_new_lines(opened["s0"], rest, "s0")) == [b"two"]
        with log.open("a") as file:
            file.write("ee\n")
        assert list(_new_lines(opened["s0"], rest, "s0")) == [b"three"]
