"""Every story tells today what it told when somebody read it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .story import rewritten

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    found = rewritten(text)
    if request.config.getoption("--rewrite", default=False) or os.environ.get("PLUGML_REWRITE", "") not in ("", "0"):
        if found != text:
            path.write_text(found)
        return
    assert found.splitlines() == text.splitlines()


def test_there_are_stories_and_each_says_what_it_shows() -> None:
    assert len(STORIES) >= 8
    for path in STORIES:
        assert path.read_text().startswith("# "), f"{path.name} opens without a sentence"


def test_a_changed_trace_is_seen() -> None:
    """The comparison can fail: another trace under the same commands is not the same text."""
    text = STORIES[0].read_text()
    lines = text.splitlines()
    first = lines.index("----") + 1
    lines[first] += " and more"
    assert rewritten("\n".join(lines)).splitlines() == text.splitlines() != lines
