"""Clients in compiled languages: how `drivers/<language>/` and the example of `clients/<language>/` are built.

One function a language: it is given an empty directory and leaves two programs there, `drive` and `train`, or says by which
words they start.  Pauses after AGAIN take no time where UNPAUSED is in the environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).resolve().parents[2]
CLIENTS = TOP / "clients"
DRIVERS = Path(__file__).resolve().parent / "drivers"
BUILD_S = 240.0


class Programs(NamedTuple):
    """The first words of the driver's and of the example's command."""

    drive: tuple[str, ...]
    train: tuple[str, ...]


class Recipe(NamedTuple):
    """The folder in clients/, what must be on the path, and how to build."""

    folder: str
    tools: tuple[str, ...]
    build: Callable[[Path], None]
    programs: Callable[[Path], Programs]


def _run(directory: Path, *words: str, **environ: str) -> None:
    done = subprocess.run(words, cwd=directory, env={**os.environ, **environ}, capture_output=True, text=True, timeout=BUILD_S)
    if done.returncode or done.stdout or done.stderr:  # a warning is a failure
        raise AssertionError(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def _unpaused(source: Path, target: Path, pause: str, instead: str) -> None:
    """A copy of a client in which one statement is another one."""
    text = source.read_text()
    assert text.count(pause) == 1, f"{source} has {text.count(pause)} times {pause!r}"
    target.write_text(text.replace(pause, instead))


def _two(directory: Path) -> Programs:
    return Programs((str(directory / "drive"),), (str(directory / "train"),))


_CPP = "-std=c++11 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -O1 -ffp-contract=off".split()


def _hpp(directory: Path) -> None:
    include = f"-I{CLIENTS / 'c'}", f"-I{CLIENTS / 'cpp'}"
    _run(directory, "g++", *_CPP, *include, "-Dnanosleep=plugml_test_pause", "-c", str(CLIENTS / "c" / "plugml.c"), "-o", "plugml.o")
    _run(directory, "g++", *_CPP, *include, "-g", "-fsanitize=address,undefined", str(DRIVERS / "cpp" / "drive.cpp"), "plugml.o", "-o", "drive")
    _run(directory, "g++", *_CPP, *include, str(CLIENTS / "cpp" / "example" / "trainer.cpp"), str(CLIENTS / "c" / "plugml.c"), "-o", "train")


def _fortran(directory: Path) -> None:
    pause = "status = c_usleep(pause)"
    unpaused = f"call get_environment_variable('UNPAUSED', status=tries_left)\n      if (tries_left /= 0) {pause}"
    _unpaused(CLIENTS / "fortran" / "plugml.f90", directory / "plugml.f90", pause, unpaused)
    source = (directory / "plugml.f90").read_text()
    (directory / "plugml.f90").write_text(source.replace("    integer :: tries\n", "    integer :: tries, tries_left\n"))
    # What may be uninitialized is a guess, wrong for strings that are allocated when they are assigned.
    flags = "-std=f2018", "-Wall", "-Wextra", "-Wno-maybe-uninitialized", "-Werror", "-O1", "-ffp-contract=off"
    _run(directory, "gfortran", *flags, "-c", "plugml.f90")
    _run(directory, "gfortran", *flags, "-fwrapv", "-g", str(DRIVERS / "fortran" / "drive.f90"), "plugml.o", "-o", "drive")
    _run(directory, "gfortran", *flags, str(CLIENTS / "fortran" / "example" / "trainer.f90"), "plugml.o", "-o", "train")


def _go(directory: Path) -> None:
    client = CLIENTS / "go"
    shutil.copy(client / "go.mod", directory)
    _unpaused(client / "plugml.go", directory / "plugml.go", "time.Sleep(pause)", 'if os.Getenv("UNPAUSED") == "" {\n\t\t\ttime.Sleep(pause)\n\t\t}')
    shutil.copytree(client / "example", directory / "example")
    shutil.copytree(DRIVERS / "go", directory / "driver")
    environ = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    _run(directory, "go", "vet", "./...", **environ)
    _run(directory, "go", "build", "-o", "drive", "./driver", **environ)
    _run(directory, "go", "build", "-o", "train", "./example", **environ)


def _rust(directory: Path) -> None:
    pause = "thread::sleep(pause);"
    _unpaused(CLIENTS / "rust" / "plugml.rs", directory / "plugml.rs", pause, f'if std::env::var_os("UNPAUSED").is_none() {{ {pause} }}')
    for source, program in ((DRIVERS / "rust" / "drive.rs", "drive"), (CLIENTS / "rust" / "example" / "trainer.rs", "train")):
        shutil.copy(source, directory / f"{program}.rs")
        _run(directory, "rustc", "--edition=2021", "-Dwarnings", "-Copt-level=1", "-o", program, f"{program}.rs")


def _java(directory: Path) -> None:
    pause = "Thread.sleep(pause);"
    _unpaused(CLIENTS / "java" / "Plugml.java", directory / "Plugml.java", pause, f'if (System.getenv("UNPAUSED") == null) {pause} else Thread.sleep(0);')
    _run(directory, "javac", "-Xlint:all", "-Werror", "-d", ".", "Plugml.java", str(DRIVERS / "java" / "Drive.java"), str(CLIENTS / "java" / "example" / "Trainer.java"))


def _java_programs(directory: Path) -> Programs:
    java = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-cp", str(directory))
    return Programs((*java, "Drive"), (*java, "Trainer"))


RECIPES = {
    "hpp": Recipe("cpp", ("g++",), _hpp, _two),
    "fortran": Recipe("fortran", ("gfortran",), _fortran, _two),
    "go": Recipe("go", ("go",), _go, _two),
    "rust": Recipe("rust", ("rustc",), _rust, _two),
    "java": Recipe("java", ("javac", "java"), _java, _java_programs),
}
