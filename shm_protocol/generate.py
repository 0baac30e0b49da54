"""`python -m plugml.shm_protocol.generate [--check]`: the C header and the tables of SPEC.md, made from `page.py` and the codes.

Writes clients/c/plugml_shm.h and what stands between the marks in SPEC.md; with --check it only compares, and ends with
1 if a file is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..core.errors import MEANINGS, Code
from . import kept, page
from .info import VERSION

HEADER = Path(__file__).resolve().parents[1] / "clients" / "c" / "plugml_shm.h"
SPEC = Path(__file__).resolve().parent / "SPEC.md"

_C_TYPES = {
    "c": "char", "B": "uint8_t", "H": "uint16_t", "I": "uint32_t", "i": "int32_t", "Q": "uint64_t", "q": "int64_t",
}  # fmt: skip
_SIZES = {"c": 1, "B": 1, "H": 2, "I": 4, "i": 4, "Q": 8, "q": 8}


def header_text() -> str:
    """The whole header."""
    parts = [
        "/* plugml_shm.h: constants and the ctl page of the plugml channel.  Made by `python -m plugml.shm_protocol.generate`",
        " * from shm_protocol/page.py: change that table, not this file.  shm_protocol/SPEC.md says what everything means.",
        " */",
        "#ifndef PLUGML_SHM_H",
        "#define PLUGML_SHM_H",
        "",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        *_defines(),
        "",
        *_list("CODES", "number, word, what happened, what to do", [_code(code) for code in Code]),
        *_list("STATES", "number, word, meaning", [f'{n}, {name}, "{about}"' for n, name, about in page.STATES]),
        *_list("COUNTERS", "index, name, meaning", _counter_rows()),
        *_structure(),
        "",
        *_asserts(),
        "",
        "#endif",
    ]
    return "\n".join(parts) + "\n"


def _defines() -> list[str]:
    values: list[tuple[str, str]] = [
        ("PROTOCOL_VERSION", str(VERSION)),
        ("MAGIC", f'"{page.MAGIC.decode()}"'),
        ("ABI_MAJOR", str(page.ABI_MAJOR)),
        ("ABI_MINOR", str(page.ABI_MINOR)),
        ("ENDIAN_TAG", f"{page.ENDIAN_TAG:#010x}u"),
        ("PAGE_BYTES", str(page.PAGE_BYTES)),
        ("RECORD_BYTES", str(page.RECORD_BYTES)),
        ("REQUEST_BYTES_MAX", str(page.REQUEST_BYTES_MAX)),
        ("CONSTANT_BYTES", f"{page.CONSTANT_BYTES:#x}"),
        ("LOG_START", f"{page.LOG_START:#x}"),
        ("LOG_END", f"{page.LOG_END:#x}"),
        ("FLAG_STOP", f"{page.FLAG_STOP}u"),
    ]
    values += [(f"AT_{field.name.upper()}", f"{field.offset:#05x}") for field in page.FIELDS]
    return [f"#define PLUGML_{name:<20} {value}" for name, value in values]


def _list(name: str, columns: str, rows: list[str]) -> list[str]:
    """A list that its user unfolds with a macro of his own: X(row)."""
    body = [f"    X({row})" for row in rows]
    return [f"/* {columns} */", f"#define PLUGML_{name}(X) \\", *(f"{line} \\" for line in body[:-1]), body[-1], ""]


def _code(code: Code) -> str:
    meaning = MEANINGS[code]
    return f'{int(code)}, {code.name}, "{meaning.happened}", "{meaning.remedy}"'


def _counter_rows() -> list[str]:
    return [f'{number}, {name}, "{about}"' for number, (name, about) in enumerate(page.COUNTER_NAMES)]


def _structure() -> list[str]:
    lines = ["/* The whole page; gaps are zero. */", "struct plugml_ctl {"]
    at, gaps = 0, 0
    for field in page.FIELDS:
        if field.offset > at:
            lines.append(f"    uint8_t gap{gaps}[{field.offset - at:#x}];")
            gaps += 1
        length = f"[{field.length}]" if field.length > 1 else ""
        lines.append(f"    {_C_TYPES[field.code]} {field.name}{length}; /* {field.offset:#05x} {field.about} */")
        at = field.offset + _SIZES[field.code] * field.length
    if at < page.PAGE_BYTES:
        lines.append(f"    uint8_t gap{gaps}[{page.PAGE_BYTES - at:#x}];")
    return [*lines, "};"]


def _asserts() -> list[str]:
    lines = [
        "/* A negative array size says no in C99 and C++98, too, where there is no other way. */",
        "#if defined(__cplusplus) && __cplusplus >= 201103L",
        "#define PLUGML_STATIC_ASSERT(condition) static_assert(condition, #condition)",
        "#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L",
        "#define PLUGML_STATIC_ASSERT(condition) _Static_assert(condition, #condition)",
        "#else",
        "#define PLUGML_JOINED(left, right) left##right",
        "#define PLUGML_NAMED(line) PLUGML_JOINED(plugml_assert_, line)",
        "#define PLUGML_STATIC_ASSERT(condition) typedef char PLUGML_NAMED(__LINE__)[(condition) ? 1 : -1]",
        "#endif",
    ]
    for field in page.FIELDS:
        lines.append(f"PLUGML_STATIC_ASSERT(offsetof(struct plugml_ctl, {field.name}) == PLUGML_AT_{field.name.upper()});")
    lines.append("PLUGML_STATIC_ASSERT(sizeof(struct plugml_ctl) == PLUGML_PAGE_BYTES);")
    return lines


def spec_text(text: str) -> str:
    """SPEC.md with its tables made anew, each between a begin and an end mark."""
    tables = (("layout", _spec_layout(page.FIELDS)), ("kept", _spec_layout(kept.FIELDS)), ("counters", _spec_counters()), ("codes", _spec_codes()))
    for name, rows in tables:
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _begin, rest = text.partition(begin)
        _old, _end, after = rest.partition(end)
        text = before + begin + "\n".join(rows) + "\n" + end + after
    return text


def _spec_layout(fields: tuple[page.Field, ...]) -> list[str]:
    rows = ["| at | type | name | meaning |", "|---|---|---|---|"]
    for field in fields:
        kind = _C_TYPES[field.code].removesuffix("_t") + (f"[{field.length}]" if field.length > 1 else "")
        rows.append(f"| {field.offset:#05x} | {kind} | `{field.name}` | {field.about} |")
    return rows


def _spec_counters() -> list[str]:
    rows = ["| index | name | counts |", "|---|---|---|"]
    return rows + [f"| {number} | `{name}` | {about} |" for number, (name, about) in enumerate(page.COUNTER_NAMES)]


def _spec_codes() -> list[str]:
    rows = ["| number | code | what happened | what to do |", "|---|---|---|---|"]
    for code, meaning in MEANINGS.items():
        if code is not Code.OK:
            rows.append(f"| {int(code)} | `{code.name}` | {meaning.happened} | {meaning.remedy} |")
    return rows


def main(arguments: list[str]) -> int:
    outdated = 0
    for path, text in ((HEADER, header_text()), (SPEC, spec_text(SPEC.read_text()))):
        if path.is_file() and path.read_text() == text:
            continue
        if "--check" in arguments:
            print(f"{path} is out of date: run python -m plugml.shm_protocol.generate", file=sys.stderr)
            outdated = 1
        else:
            path.write_text(text)
    return outdated


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
