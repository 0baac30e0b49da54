"""Every numbered sentence of SPEC.md is named by a test that proves it (`# SPEC 3.4`), or stands here with the reason why not."""

from __future__ import annotations

import re
from pathlib import Path

from plugml.shm_protocol import generate

TESTS = Path(__file__).resolve().parents[1]
#: What no test of ours can show.
ADVICE = {
    "5.9": "an advice to programs: whoever polls is slow, not wrong",
    "9.7": "the launcher's part: tests of `plugml run`",
    "12.4": "a trap of shells: tests of the shell client",
    "12.7": "a trap of buffered output: tests of the clients",
    "12.8": "a trap of inherited descriptors: tests of the clients",
    "12.9": "an advice to Python programs",
    "12.10": "a trap of languages that count from 1: tests of the clients",
    "12.11": "an advice on containers",
}


def sentences() -> set[str]:
    return set(re.findall(r"^(\d+\.\d+) ", generate.SPEC.read_text(), re.MULTILINE))


def named() -> dict[str, list[str]]:
    """Sentence -> files whose tests name it."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for numbers in re.findall(r"# SPEC((?: \d+\.\d+)+)", path.read_text()):
            for number in numbers.split():
                found.setdefault(number, []).append(path.name)
    return found


def test_tests_name_only_sentences_that_exist() -> None:
    assert set(named()) - sentences() == set()


def test_every_sentence_has_a_test_or_a_reason() -> None:
    proven = set(named())
    assert sentences() - proven - set(ADVICE) == set()
    assert set(ADVICE) & proven == set(), "a reason is not needed any more"
