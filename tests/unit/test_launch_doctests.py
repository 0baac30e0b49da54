"""The examples in the docstrings of the launcher's pure parts."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path.stem for path in (ROOT / "launch").glob("*.py") if ">>>" in path.read_text())


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"plugml.launch.{name}")).failed == 0
