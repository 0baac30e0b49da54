"""The wheel, not the checkout, is what users install: it holds real files and works from another directory."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def build(what: str, source: Path, target: Path) -> Path:
    """`what` is wheel or sdist."""
    code = f"import hatchling.build, sys; print(hatchling.build.build_{what}(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(target)], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


def test_it_holds_every_part_and_client_as_real_files(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "plugml/__init__.py", "plugml/py.typed", "plugml/core/keys.py", "plugml/client/__init__.py", "plugml/server/range.py",
        "plugml/shm_protocol/SPEC.md", "plugml/clients/c/plugml.h", "plugml/clients/c/plugml_shm.h", "plugml/clients/sh/plugml.sh",
        "plugml/clients/rust/plugml.rs",
        "plugml/clients/cpp/plugml.hpp",
        "plugml/clients/java/Plugml.java",
        "plugml/clients/fortran/plugml.f90",
        "plugml/clients/r/plugml.R", "plugml/clients/go/plugml.go",
    ):  # fmt: skip
        assert name in names, f"{name} is missing"
    assert not [name for name in names if name.startswith(("core/", "tests/", "bench/"))]


def test_it_runs_from_another_directory(wheel: Path, tmp_path: Path) -> None:
    """Its own code is the wheel's; the dependencies are those of this environment, so that nothing is fetched."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = tmp_path / "env" / "lib" / version / "site-packages"
    zipfile.ZipFile(wheel).extractall(site)
    dependencies = Path(sys.prefix) / "lib" / version / "site-packages"
    code = (
        f"import sys; sys.path.append({str(dependencies)!r}); "
        "import plugml; assert plugml.__file__.startswith(sys.prefix), plugml.__file__; "
        "from plugml.cli.main import main; sys.argv = ['plugml', '--version']; main()"
    )
    done = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "0.1.0" in done.stdout


def test_the_wheel_of_the_source_archive_is_the_same(wheel: Path, tmp_path: Path) -> None:
    """The archive has no links: what lies behind them is in it as files."""
    archive = build("sdist", ROOT, tmp_path)
    with tarfile.open(archive) as file:
        assert not [member.name for member in file if member.issym()]
        file.extractall(tmp_path, filter="data")
    again = build("wheel", tmp_path / archive.name.removesuffix(".tar.gz"), tmp_path)
    assert sorted(zipfile.ZipFile(again).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())
