"""The clients that tests drive: how each is compiled and started.  A missing toolchain is a reason to skip.

A `Language` starts `drivers/drive.*`, `drivers/rows.*`, the digits trainer or the counter in its language, with the client
that a user would copy.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .compiled import RECIPES

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
C_CLIENT = TOP / "clients" / "c"
EXAMPLES = TOP / "examples"
#: What a client needs from its surroundings.
ENVIRONMENT = {
    "PLUGML_R": str(TOP / "clients" / "r" / "plugml.R"),
    "PLUGML_SH": str(TOP / "clients" / "sh" / "plugml.sh"),
    "PYTHONPATH": str(TOP),
}
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")
#: Bit-identity needs each product rounded before it is added, as numpy does it.
STRICT = ("-O2", "-ffp-contract=off")


class Language(NamedTuple):
    """`drive`, `count`, `train` and `rows` are the first words of a command; empty where the language has none."""

    name: str
    drive: tuple[str, ...] = ()
    count: tuple[str, ...] = ()
    train: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()


def compile_c(out: Path, source: Path, *flags: str, compiler: str = "gcc", standard: str = "c99") -> Path:
    """Compile one program with the C client, warnings as errors; returns `out`."""
    language = ("-x", "c++") if compiler == "g++" else ()
    subprocess.run(
        [compiler, *language, f"-std={standard}", *WARNINGS, *flags, f"-I{C_CLIENT}", str(source), str(C_CLIENT / "plugml.c"), "-lm", "-o", str(out)],
        check=True, timeout=120,
    )  # fmt: skip
    return out


class Toolchains:
    """Languages by name, compiled at most once in a directory, which several processes may share."""

    def __init__(self, directory: Path, require: Callable[[str], None]) -> None:
        self.directory = directory
        self.require = require
        self._ready: dict[str, Language] = {}

    def language(self, name: str) -> Language:
        if name not in self._ready:
            make = getattr(self, f"_{name.replace('-', '_')}", None)
            self._ready[name] = make() if make else self._by_recipe(name)
        return self._ready[name]

    def _built(self, name: str, source: Path, *flags: str, compiler: str = "gcc", standard: str = "c99") -> str:
        self.require(compiler)
        path = self.directory / name
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # who waits finds it made
            if not path.exists():
                compile_c(path.with_suffix(".new"), source, *STRICT, *flags, compiler=compiler, standard=standard).rename(path)
        return str(path)

    def _by_recipe(self, name: str) -> Language:
        recipe = RECIPES[name]
        for tool in recipe.tools:
            self.require(tool)
        directory = self.directory / f"recipe-{name}"
        with directory.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            failed = directory.with_suffix(".failed")
            if failed.exists():
                raise AssertionError(failed.read_text())
            if not directory.exists():
                fresh = directory.with_suffix(f".{os.getpid()}")
                fresh.mkdir()
                try:
                    recipe.build(fresh)
                except AssertionError as error:
                    failed.write_text(str(error))
                    raise
                fresh.rename(directory)
        programs = recipe.programs(directory)
        return Language(name, programs.drive, (), programs.train, (*programs.drive, "rows"))

    def _c(self) -> Language:
        sources = EXAMPLES / "digits" / "trainer.c", EXAMPLES / "hello" / "count.c"
        drive = self._built("drive", HERE / "drivers" / "drive.c", "-g", "-fsanitize=address,undefined")
        rows = self._built("rows", HERE / "drivers" / "rows.c", "-g", "-fsanitize=address,undefined")
        return Language("c", (drive,), (self._built("count", sources[1]),), (self._built("trainer", sources[0]),), (rows,))

    def _c_unpaused(self) -> Language:
        rows = self._built("rows-unpaused", HERE / "drivers" / "rows.c", "-Dnanosleep=plugml_test_pause")
        return Language("c-unpaused", rows=(rows,))

    def _cpp(self) -> Language:
        return Language("cpp", rows=(self._built("rows-cpp", HERE / "drivers" / "rows.c", compiler="g++", standard="c++11"),))

    @staticmethod
    def _python() -> Language:
        return Language("python", rows=(sys.executable, str(HERE / "drivers" / "rows.py")))

    def _python_plain(self) -> Language:
        return Language("python-plain", rows=(*self._python().rows, "-u"))

    def _c_mapped(self) -> Language:
        c = self.language("c")
        return Language("c-mapped", (*c.drive, "-m"), c.count, c.train)

    def _hpp_mapped(self) -> Language:
        hpp = self._by_recipe("hpp")
        return Language("hpp-mapped", (*hpp.drive, "-m"))

    def _go_mapped(self) -> Language:
        return Language("go-mapped", (*self._by_recipe("go").drive, "-m"))

    def _java_mapped(self) -> Language:
        java = self._by_recipe("java")
        return Language("java-mapped", (*java.drive, "-m"))

    def _c_float(self) -> Language:
        float_drive = self._built("drive-float", HERE / "drivers" / "drive.c", "-DREAL=float", '-DFORMAT="%.9g"', "-DPRINTED=double")
        trainer = self._built("trainer-float", EXAMPLES / "digits" / "trainer.c", "-DREAL=float")
        return Language("c-float", (float_drive,), (), (trainer,))

    def _c_whole(self) -> Language:
        flags = "-DREAL=long long", '-DFORMAT="%lld"', "-DPRINTED=long long"
        return Language("c-whole", (self._built("drive-whole", HERE / "drivers" / "drive.c", *flags),), (), ())

    def _r(self) -> Language:
        self.require("Rscript")
        return Language("r", *((("Rscript", "--vanilla", str(path))) for path in self._scripts("R")))

    def _sh(self, shell: str = "dash") -> Language:
        self.require(shell)
        self.require("awk")
        return Language(shell, *(((shell, str(path))) for path in self._scripts("sh")))

    def _dash(self) -> Language:
        return self._sh("dash")

    def _bash(self) -> Language:
        return self._sh("bash")

    def _mksh(self) -> Language:
        return self._sh("mksh")

    @staticmethod
    def _scripts(suffix: str) -> tuple[Path, ...]:
        return (
            HERE / "drivers" / f"drive.{suffix}",
            EXAMPLES / "hello" / f"count.{suffix}",
            EXAMPLES / "digits" / f"trainer.{suffix}",
            HERE / "drivers" / f"rows.{suffix}",
        )
