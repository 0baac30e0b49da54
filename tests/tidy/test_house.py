"""The house stays as ARCHITECTURE.md draws it: layers, sizes, calls that a machine must not make, what a wheel holds."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLOORS = {
    "core": 0, "wire": 1, "shm_protocol": 1, "layouts": 1, "client": 2, "server": 3, "master": 3, "agent": 3, "launch": 3,
    "runtime": 4, "cli": 6, "plugml": 7,
}  # fmt: skip
FOLDERS = {"client": "clients/python", **{name: name for name in FLOORS if name != "client"}}
#: Files of floor 5 inside the folders of floor 3: they own sockets, files and processes.
SHELLS = {
    "server": {"main.py", "rangefiles.py", "savedisk.py"},
    "master": {"main.py", "reach.py", "store.py", "etcd.py"},
    "agent": {"main.py", "disk.py", "door.py", "exportdisk.py", "piecefile.py"},
    "launch": {"main.py", "agentlink.py", "byhand.py", "cluster.py", "daemon.py", "discovery.py", "export_files.py", "export_rows.py", "fifo.py", "guard.py", "host.py", "join.py", "keeper.py", "evaluation.py", "datafiles.py", "private.py", "reach.py", "resize.py", "output.py", "progress.py", "result.py", "resume.py", "rounds.py", "roundfiles.py", "start.py", "takedown.py"},
}  # fmt: skip
MACHINE_BANS = {"time", "random", "asyncio", "threading", "socket", "subprocess", "uvloop", "zmq", "select", "signal"}
LINES_MAX = 420


def sources() -> list[tuple[str, Path]]:
    return [(part, path) for part, folder in FOLDERS.items() for path in sorted((ROOT / folder).rglob("*.py"))]


def floor_of(part: str, path: Path) -> int:
    if path.name in SHELLS.get(part, set()):
        return 5
    return FLOORS[part]


def imported_parts(path: Path, part: str) -> set[str]:
    """Parts of plugml that a file imports (anywhere in it)."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.ImportFrom):
            folder = path.relative_to(ROOT / FOLDERS[part]).parent
            above = node.level - 1 - len(folder.parts)
            if above < 1:
                continue
            module = (node.module or "").split(".")[0]
            names = [f"plugml.{module}"] if module else [f"plugml.{alias.name}" for alias in node.names]
        else:
            continue
        parts |= {name.split(".")[1] for name in names if name.startswith("plugml.")}
    return parts & set(FLOORS)


@pytest.mark.parametrize(("part", "path"), sources(), ids=lambda value: str(value).replace(str(ROOT), ""))
def test_imports_go_downwards_and_peers_never_meet(part: str, path: Path) -> None:
    floor = floor_of(part, path)
    for other in imported_parts(path, part) - {part}:
        assert FLOORS[other] < floor, f"{path.name} on floor {floor} imports plugml.{other} on floor {FLOORS[other]}"


@pytest.mark.parametrize(("part", "path"), sources(), ids=lambda value: str(value).replace(str(ROOT), ""))
def test_a_file_fits_in_a_head(part: str, path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= LINES_MAX, f"{path.relative_to(ROOT)} has {len(lines)} lines, at most {LINES_MAX}"
    if path.name != "__init__.py" or lines:
        assert path.read_text().startswith(('"""', 'r"""', "#!")), f"{path} opens without saying what it owns"


@pytest.mark.parametrize(
    ("part", "path"),
    [(part, path) for part, path in sources() if FLOORS[part] in (0, 1, 3) and floor_of(part, path) != 5 and part != "shm_protocol"],
    ids=lambda value: str(value).replace(str(ROOT), ""),
)
def test_a_machine_neither_waits_nor_looks_at_a_clock(part: str, path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        for name in names:
            assert name.split(".")[0] not in MACHINE_BANS, f"{path.relative_to(ROOT)} imports {name}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("open", "hash", "id", "input", "print"), f"{path}: calls {node.func.id}()"


def test_every_part_is_linked_into_the_package() -> None:
    for part, folder in FOLDERS.items():
        if part == "plugml":
            continue
        link = ROOT / "plugml" / part
        assert link.is_symlink() and link.resolve() == (ROOT / folder).resolve(), f"plugml/{part} does not lead to {folder}"


def test_no_file_speaks_of_a_machine() -> None:
    """No absolute path of somebody's machine and no trace of how the files came to be."""
    pattern = re.compile(r"(^|[^A-Za-z.\w])/(home|root|work)/[a-z]")
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split("\n")
    for name in files:
        path = ROOT / name
        if not name or not path.is_file() or path.is_symlink() or path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text(errors="ignore").splitlines(), 1):
            assert not pattern.search(line), f"{name}:{number}: {line.strip()[:80]}"
