"""What `plugml conform` says of the clients in compiled languages, and what their examples come to: alone, and several in one job."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol.conform.prove import prove, prove_driver
from plugml.shm_protocol.conform.trial import Command
from plugml.shm_protocol.conform.verdict import OK, Report, text
from plugml.shm_protocol.info import without

from .compiled import RECIPES
from .fake_agent import FakeAgent, run
from .languages import ENVIRONMENT, TOP, Language, Toolchains
from .test_conform import ROWS, ROWS_CASES, job, rows_job

HANG_S = 120.0
STEPS = 12
LR = 0.5

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture(params=RECIPES)
def language(request: pytest.FixtureRequest, toolchains: Toolchains) -> Language:
    return toolchains.language(request.param)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Two shards of unequal size, and both of them together: images whose pixels hang on their label."""
    directory = tmp_path_factory.mktemp("shards")
    numbers = np.random.default_rng(5)
    labels = numbers.integers(0, 10, 50)
    pixels = np.clip(numbers.integers(0, 17, (10, 64))[labels] + numbers.integers(-4, 5, (50, 64)), 0, 16)
    lines = [" ".join(map(str, row)) + "\n" for row in np.column_stack([labels, pixels]).tolist()]
    paths = directory / "first.txt", directory / "second.txt", directory / "all.txt"
    for path, part in zip(paths, (lines[:32], lines[32:], lines)):
        path.write_text("".join(part))
    return paths


def command(words: tuple[str, ...]) -> Command:
    return Command(words, {**ENVIRONMENT, "PYTHONPATH": str(TOP)}, None, 10.0)


def reached(found: Report) -> set[str]:
    return {item.rule.number for item in found.found if item.state == OK}


# -- plugml conform


def test_a_driver_keeps_to_every_sentence(language: Language) -> None:
    found = prove_driver(command(language.drive), job(optimizer="add"))

    assert found.broken == (), text(found, True)
    assert reached(found) >= {
        "1.10", "2.2", "2.3", "2.9", "2.10", "2.15", "4.5", "4.6", "5.2", "5.4", "5.7", "5.9", "5.10", "6.3", "6.7", "6.8", "6.10", "8.1", "8.2",
    }, text(found, True)  # fmt: skip


def test_rows_pieces_and_limits_keep_to_every_sentence(language: Language) -> None:
    found = prove(command((*language.rows, *ROWS)), rows_job(), ROWS_CASES)

    assert found.broken == (), text(found, True)
    assert reached(found) >= {"3.14", "3.16", "3.17", "3.18", "3.19", "3.21", "4.12", "4.13", "4.14", "4.16", "4.17"}, text(found, True)


def test_the_example_keeps_to_every_sentence(language: Language, shards: tuple[Path, Path, Path], tmp_path: Path) -> None:
    words = (*language.train, str(shards[1]), "7", str(tmp_path / "w.txt"))
    found = prove(command(words), JobSpec("digits", 1, (TableSpec("w", (10, 65), dtype="f64", order=order_of(language)),)))

    assert found.broken == (), text(found, True)
    assert reached(found) >= {"1.10", "4.5", "4.6", "5.2", "5.4", "6.7", "8.2"}, text(found, True)


# -- several dense tables


def test_tables_of_three_kinds_by_name(language: Language) -> None:
    tables = tuple(TableSpec(name, (n,), dtype=dtype, optimizer="add") for name, n, dtype in (("a", 3, "f32"), ("b", 2, "f64"), ("c", 4, "i64")))
    agent = FakeAgent(JobSpec("named", 1, tables, combine="sum"))
    ops = ("put:a:1", "put:b:0.5", "put:c:-7", "step", "get:a", "get:b", "get:c", "get:d", "step:1", "put:c:1", "step", "get:b", "get:c", "bye")
    with agent:
        done = subprocess.run([*language.rows, *ops], env={**agent.environment(), **ENVIRONMENT}, capture_output=True, text=True, timeout=HANG_S)

    assert done.returncode == 0, done
    assert [line.replace(" stopped=0 lag=0", "") for line in done.stdout.splitlines()] == [
        "put:a:1 1 OK clock=0", "put:b:0.5 1 OK clock=0", "put:c:-7 1 OK clock=0", "step 1 OK clock=1",
        "get:a 1 OK clock=1 a=1,2,3", "get:b 1 OK clock=1 b=0.5,1.5", "get:c 1 OK clock=1 c=-7,-6,-5,-4", "get:d E RANGE clock=1",
        "step:1 E SIZE clock=1", "put:c:1 1 OK clock=1", "step 1 OK clock=2", "get:b 1 OK clock=2 b=1,3", "get:c 1 OK clock=2 c=-6,-4,-2,0",
    ]  # fmt: skip
    assert "no dense table d" in done.stderr
    assert agent.server.pushes == [2] and agent.byes == {0}


# -- the examples


def order_of(language: Language) -> str:
    return "F" if language.name == "fortran" else "C"


def alone(language: Language, shard: Path, weights: Path, steps: int = STEPS) -> np.ndarray:
    words = [*language.train, str(shard), str(steps), str(weights), str(LR)]
    subprocess.run(words, env=without(os.environ), check=True, capture_output=True, timeout=HANG_S)
    return np.loadtxt(weights)


def together(languages: list[Language], shards: list[Path], directory: Path, order: str, steps: int = STEPS) -> list[np.ndarray]:
    """What each worker wrote at the end of a BSP job in which each has its own shard."""
    table = TableSpec("w", (10, 65), dtype="f64", order=order, settings={"lr": LR})
    agent = FakeAgent(JobSpec("digits", len(languages), (table,)))
    paths = [directory / f"w{worker}.txt" for worker in range(len(languages))]
    codes = run(agent, [
        ["sh", "-c", 'exec "$@" >"$0"', os.devnull, *language.train, str(shard), str(steps), str(path), str(LR)]
        for language, shard, path in zip(languages, shards, paths)
    ])  # fmt: skip
    assert codes == [0] * len(languages)
    assert agent.server.pushes == [steps] * len(languages)
    return [np.loadtxt(path) for path in paths]


def test_two_workers_go_the_way_of_the_serial_program(language: Language, shards: tuple[Path, Path, Path], tmp_path: Path) -> None:
    for steps in (1, STEPS):
        serial = alone(language, shards[2], tmp_path / "serial.txt", steps)
        first, second = together([language, language], list(shards[:2]), tmp_path, order_of(language), steps)

        assert np.array_equal(first, second)
        assert np.abs(serial).max() > 0.01
        assert np.abs(first - serial).max() <= 1e-12


def test_it_works_beside_a_c_program(language: Language, shards: tuple[Path, Path, Path], tmp_path: Path, toolchains: Toolchains) -> None:
    serial = alone(language, shards[2], tmp_path / "serial.txt")
    first, second = together([language, toolchains.language("c")], list(shards[:2]), tmp_path, "C")

    assert np.array_equal(first, second)
    assert np.abs(first - serial).max() <= 1e-12


def test_the_example_needs_at_most_four_lines(language: Language) -> None:
    [example] = (TOP / "clients" / RECIPES[language.name].folder / "example").iterdir()
    lines = example.read_text().splitlines()
    body = lines[next(number for number, line in enumerate(lines) if "Without PLUGML_DIR" in line) + 1 :]

    assert 1 <= sum("plugml" in line for line in body) <= 4
