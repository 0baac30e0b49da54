"""A result reads back in numpy, R and C as docs/result.md says: its examples are run on one, as they stand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from plugml.launch.export import FORMATS
from plugml.launch.plan import make_plan
from plugml.launch.result import publish
from tests.system import reading
from tests.system.reading import Tables

IDS = [5, 0, 999_999]
KEYS = ["zebra", "b,c", "apfel", "äpfel", "a"]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tables]:
    """One result in all formats, from raw files as an agent leaves them, and what is in it."""
    top = tmp_path_factory.mktemp("result")
    scratch, directory = top / ".saving", top / "r"
    scratch.mkdir()
    directory.mkdir()
    rng = np.random.default_rng(0)
    w, m = rng.standard_normal((2, 3)), rng.standard_normal((2, 3)).astype("<f4")
    e, s = (rng.standard_normal((count, 2)).astype("<f4") for count in (len(IDS), len(KEYS)))
    (scratch / "w.bin").write_bytes(w.tobytes())
    (scratch / "m.bin").write_bytes(m.tobytes(order="F"))
    (scratch / "e.bin").write_bytes(e.tobytes())
    (scratch / "e.idx").write_bytes(np.array(IDS, "<u4").tobytes())
    (scratch / "s.bin").write_bytes(s.tobytes())
    (scratch / "s.keys").write_bytes("".join(f"{key}\n" for key in KEYS).encode())
    plan = make_plan({}, "job.toml", {"tables": reading.OPTIONS, "argv": ["true"]}, str(top))
    publish(plan.spec.tables, scratch, directory, {}, FORMATS)
    by_key = dict(sorted(zip(KEYS, s), key=lambda pair: pair[0].encode()))
    return directory, Tables(w, m, dict(sorted(zip(IDS, e))), by_key)


def test_in_numpy(result: tuple[Path, Tables], monkeypatch: pytest.MonkeyPatch) -> None:
    reading.check_numpy(*result, monkeypatch)


def test_in_r(result: tuple[Path, Tables], require: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    require("Rscript")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    reading.check_r(*result)


def test_in_c(result: tuple[Path, Tables], require: Callable[[str], None], tmp_path: Path) -> None:
    require("gcc")
    reading.check_c(result[0], tmp_path, result[1])


def test_the_example_names_every_format_and_table() -> None:
    assert len(reading.OPTIONS) == 4
    for name in FORMATS:
        assert f"| `{name}` |" in reading.DOCUMENT
