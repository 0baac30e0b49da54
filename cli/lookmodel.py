"""What `plugml run --model` would see in a file: the layout to name, how many numbers, or why not.  Reads whole files, up to a size."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np

from ..layouts import LayoutError, detect, parse_layout, read
from .look import Look, Report

BYTES_MAX = 1 << 26
_RAW = (".bin", ".raw", ".idx", ".keys")  # names of files that hold raw numbers
_OFFSETS = 1 << 10  # of heads that are tried
_SANE = 0.995


def whole(path: Path) -> bytes:
    """The file, b"" where it is too large to be looked at as a model."""
    return path.read_bytes() if path.stat().st_size <= BYTES_MAX else b""


def look_at_text(path: Path, data: bytes) -> Report | None:
    """The report of a text with numbers; None for anything else."""
    if path.suffix in (*_RAW, ".csv") or not data:
        return None
    try:
        if detect(data).name != "text":
            return None
        content = read(data, parse_layout("text"))
    except LayoutError as error:
        if "not finite" not in str(error):
            return None
        return Report(str(path), "text", {"bytes": len(data)}, problems=[str(error)])
    look = Look(path.stem, "f64", content.numbers.shape, about="numbers in text")
    look.add(content.numbers)
    report = Report(str(path), "text", {"bytes": len(data)}, looks=[look])
    floats = int(np.count_nonzero(content.more.floats))
    report.notes.append(f"for {_command(path, 'text')}: {floats:,} are written as floats and shared, {content.numbers.size - floats:,} as whole numbers, which stay the program's own while they are")
    return report


def model_note(path: Path, data: bytes) -> str:
    """A sentence for the report of a binary file, "" where there is nothing to say."""
    if not data:
        return ""
    try:
        layout = detect(data)
        content = read(data, layout)
    except LayoutError as error:
        found = guesses(data)
        if not found or "say it" not in str(error):
            return f"for plugml run --model: {error}" if "say it" not in str(error) else ""
        listed = " or ".join(f"{path.name}:{name} ({count:,} numbers)" for name, count in found)
        return f"for plugml run --model: {listed} would fit, a guess; compare the count with what the program has"
    return f"for {_command(path, str(layout))}: {content.numbers.size:,} numbers"


def guesses(data: bytes) -> list[tuple[str, int]]:
    """Layouts of raw floats that fit, with their counts: for each kind the shortest head behind which all is sane (zeros are taken for part of the head)."""
    found = []
    for kind, code in (("f32", "<f4"), ("f64", "<f8")):
        width = np.dtype(code).itemsize
        for offset in range(len(data) % 4, min(_OFFSETS, len(data) // 2), 4):
            if (len(data) - offset) % width:
                continue
            values = np.frombuffer(data, code, -1, offset)
            with np.errstate(invalid="ignore"):
                size = np.abs(values)
                sane = (values == 0) | ((size > 1e-12) & (size < 1e6))
            if values[0] != 0 and sane[:4].all() and sane.mean() >= _SANE and np.count_nonzero(values) * 2 >= values.size:
                found.append((f"{kind},offset={offset}" if offset else kind, values.size))
                break
    return found


def _command(path: Path, layout: str) -> str:
    return f"plugml run --model {shlex.quote(f'{path.name}:{layout}')}"
