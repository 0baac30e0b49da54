"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import plugml.core
import plugml.master
import plugml.wire

MODULES = sorted(
    f"{package.__name__}.{module.name}"
    for package in (plugml.core, plugml.wire, plugml.master)
    for module in pkgutil.iter_modules(package.__path__)
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
