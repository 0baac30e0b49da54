"""The examples in the docstrings of the runtime, the supervisor and the command line are true."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = ("runtime.lent", "runtime.log", "runtime.output", "launch.daemon", "launch.discovery", "cli.options", "cli.look", "cli.lookfiles", "cli.inspect")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"plugml.{name}")).failed == 0
