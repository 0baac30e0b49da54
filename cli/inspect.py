"""`plugml inspect`: what is in a file of numbers, a result, or a channel; for people, or as JSON.  Exit code 1 = something is wrong with it."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import columns, json_option, print_json, size

if TYPE_CHECKING:
    from .look import Look, Report

KERNEL = ("proc", "sysfs", "debugfs", "tracefs", "cgroup", "cgroup2", "bpf", "pstore", "securityfs")

EXAMPLES = """\b
Examples:
  plugml inspect plugml-runs/digits              a result: every table, every file
  plugml inspect plugml-runs/digits/w.bin        raw numbers; result.json beside it says what they are
  plugml inspect grad.bin --dtype f64            raw numbers that nothing describes
  plugml inspect model.safetensors --json
  plugml inspect net.txt                         a program's model file: its layout for plugml run --model
  plugml inspect "$PLUGML_DIR"                   a channel: its last request, grad and param
\b
Exit codes: 0 nothing wrong; 1 something is: numbers that are not finite, a size or sum that does not fit, a damaged file; 2 usage.
"""


@click.command(epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.argument("path")
@click.option("--dtype", default="", metavar="KIND", help="What the numbers of a raw file are: f16, f32, f64, i64, u32 or u64.")
@json_option
def inspect(path: str, dtype: str, as_json: bool) -> int:
    """Say what is in PATH: a raw, npy, npz, safetensors, csv or text file, the directory of a result, or that of a channel.

    Of a program's model file it says the layout for `plugml run --model`.

    It changes nothing.
    """
    if not path:
        raise click.BadParameter("it is empty: name a file, a result or a channel", param_hint="PATH")
    report = look_at(Path(path), dtype)
    if as_json:
        print_json(report.to_document())
    else:
        click.echo(report_text(report))
    return 1 if report.problems else 0


def look_at(path: Path, dtype: str = "") -> Report:
    """The report of whatever it is.  Raises `UsageError` for what plugml has nothing to say about."""
    from ..core.errors import UsageError, WorldError
    from ..core.table import unknown_key
    from ..shm_protocol.root import file_system
    from .look import KINDS
    from .lookdirs import changed, document_beside, entry_of, look_at_channel, look_at_result
    from .lookfiles import look_at_file
    from .lookmodel import look_at_text, model_note, whole

    if dtype and dtype not in KINDS:
        raise unknown_key(dtype, list(KINDS), "--dtype")
    if path.name == "result.json":
        path = path.parent
    try:
        kernel = file_system(path)
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if stat.S_ISDIR(mode):
        if (path / "info").exists() and (path / "ctl").exists():
            return look_at_channel(path)
        if (path / "result.json").exists():
            return look_at_result(path)
        for other in ("failed", "best"):
            if (path / other / "result.json").exists():
                report = look_at_result(path / other)
                report.problems.insert(0, f"{path} holds no result of its own: this is what lies in {other}/")
                return report
        raise UsageError(f"{path} is neither a result (it has no result.json) nor a channel (no info and ctl)")
    if not stat.S_ISREG(mode):
        raise UsageError(f"{path} is no regular file: reading it could wait for ever, or take what is meant for somebody else")
    if kernel in KERNEL:
        raise UsageError(f"{path} lies in {kernel}: the kernel makes it up while it is read. Copy it elsewhere to look into it")
    document = None if dtype else document_beside(path)
    try:
        data = b"" if document is not None or dtype else whole(path)
        report = look_at_text(path, data) or look_at_file(path, entry_of(path, document), dtype)
        if report.kind != "text" and (note := model_note(path, data)):
            report.notes.append(note)
        difference = changed(path, document)
    except OSError as error:
        raise WorldError(f"{path} cannot be read: {error.strerror}") from error
    if difference:
        report.problems.append(difference)
    return report


def report_text(report: Report) -> str:
    facts = dict(report.facts)
    lines = [f"{plain(report.path)}: {report.kind}" + (f", {size(facts.pop('bytes'))}" if "bytes" in facts else "")]
    counters = facts.pop("counters", {})
    words = [f"{key} {value}" for key, value in facts.items() if key not in ("cmd", "err", "state_means", "this_boot")]
    lines += [f"  {plain(', '.join(words))}"] if words else []
    lines += [f"  {', '.join(f'{name} {count:,}' for name, count in counters.items())}"] if counters else []
    lines += [f"  {key}: {plain(line)}" for key in ("cmd", "err") for line in str(facts.get(key, "")).splitlines()]
    if report.looks:
        lines.append(columns([("TABLE", "SHAPE", "NUMBERS", "MIN", "MAX", "MEAN", ""), *map(_row, report.looks)], "  "))
    if report.files:
        lines.append(columns([(plain(name), size(nbytes), about) for name, nbytes, about in report.files], "  "))
    lines += [f"  note: {plain(text)}" for text in report.notes]
    lines += [f"  wrong: {plain(text)}" for text in report.problems]
    return "\n".join(lines)


def _row(look: Look) -> tuple[str, ...]:
    shape = " x ".join(map(str, look.shape)) or "one number"
    kind = f"{look.kind} {look.order}" if look.order == "F" else look.kind
    rows = f"{look.rows:,} rows" if look.rows is not None and not look.about else ""
    about = ", ".join(word for word in (rows, look.about, look.finite) if word)
    return (plain(look.name), plain(shape), plain(kind), _number(look.low), _number(look.high), _number(look.mean), plain(about))


def _number(value: Any) -> str:
    """Six digits, but whole numbers whole.

    >>> _number(None), _number(0.1234567), _number(1 << 40)
    ('', '0.123457', '1099511627776')
    """
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def plain(text: str) -> str:
    """What comes out of files that anybody may have written, and never moves a terminal's cursor.

    >>> plain("w\\x1b[2J")
    'w\\\\x1b[2J'
    """
    return text if text.isprintable() else "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
