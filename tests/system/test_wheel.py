"""The wheel, not the checkout, is what users install: it holds real files and works from another directory."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    build = "import hatchling.build, sys; print(hatchling.build.build_wheel(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", build, str(target)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target / done.stdout.split()[-1]


def test_it_holds_every_part_and_client_as_real_files(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "plugml/__init__.py", "plugml/py.typed", "plugml/core/keys.py", "plugml/client/__init__.py", "plugml/server/range.py",
        "plugml/shm_protocol/SPEC.md", "plugml/clients/c/plugml.h", "plugml/clients/c/plugml_shm.h", "plugml/clients/sh/plugml.sh",
        "plugml/clients/r/plugml.R",
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
