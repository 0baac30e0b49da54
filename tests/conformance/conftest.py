"""The languages that clients are tested in, compiled once a session, however many processes it has."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from .languages import Toolchains


@pytest.fixture(scope="session")
def toolchains(tmp_path_factory: pytest.TempPathFactory, require: Callable[[str], None]) -> Toolchains:
    base = tmp_path_factory.getbasetemp()  # pytest-xdist gives each of its processes a directory in the session's
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    directory.mkdir(exist_ok=True)
    return Toolchains(directory, require)
