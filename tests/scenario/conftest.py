"""`--rewrite`: write the traces of the stories anew instead of comparing them (so does PLUGML_REWRITE=1)."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the traces of the scenarios anew; read the diff")
