"""The examples in the launcher's docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import plugml.launch


@pytest.mark.parametrize("name", sorted(module.name for module in pkgutil.iter_modules(plugml.launch.__path__)))
def test_the_examples_of_a_module_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"plugml.launch.{name}")).failed == 0
