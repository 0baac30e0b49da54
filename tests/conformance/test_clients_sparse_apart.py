"""What is particular to one client where rows are concerned: arrays of numpy, rows of R, pointers of C, the sparse example."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plugml.client import ChannelError, Client, Piece, attach
from plugml.client import client as client_module
from plugml.client import files as client_files
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol import page
from plugml.shm_protocol.info import without
from plugml.shm_protocol.request import TIMEOUT_MS_MAX

from .fake_agent import FakeAgent, run
from .languages import ENVIRONMENT, STRICT, TOP, compile_c
from .test_clients_rows import DENSE, job, table_rows

HANG_S = 60.0
HASHED = TOP / "examples" / "hashed"

pytestmark = pytest.mark.usefixtures("no_leaks")


# -- Python


@pytest.fixture
def plugged() -> Iterator[Callable[..., tuple[Client, FakeAgent]]]:
    """`plugged(spec, faults)` gives a client attached to a running agent."""
    ends: list[Callable[[], object]] = []

    def make(spec: JobSpec, *faults: str, mapped: bool = True) -> tuple[Client, FakeAgent]:
        agent = FakeAgent(spec, faults)
        agent.__enter__()
        ends.append(lambda: agent.__exit__(None))
        client = attach(agent.environment(), mapped=mapped)
        ends.append(client.close)
        return client, agent

    yield make
    for end in reversed(ends):
        end()


def failed(action: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(ChannelError) as error:
        action()
    return error.value.code.name, error.value.text


def test_the_client_knows_the_constants_of_limits_and_states() -> None:
    assert client_module.TIMEOUT_MS_MAX == TIMEOUT_MS_MAX
    assert page.OFFSET["state"] == client_files.STATE_AT
    assert (page.CLOSED, page.BROKEN) == client_files.STATES_OVER


def test_rows_come_as_arrays_of_ones_own(plugged: Any) -> None:
    plug, _agent = plugged(job())
    rows = np.array([3, 1], np.int16)
    got = plug.step({"e": (rows, np.ones((2, 2)))}, want={"e": rows, "f": [1 << 63]})
    assert {name: (part.shape, part.dtype.name) for name, part in got.items()} == {"e": ((2, 2), "float32"), "f": ((1, 3), "float64")}
    got["e"][:] = 9  # not the channel's memory, and not read-only
    assert plug.pull(want={"e": [1, 3]})["e"].tolist() == [[1, 1], [1, 1]]
    assert plug.pull(want={"s": np.array(["x", "y"])})["s"].tolist() == [[0], [0]]
    assert plug.pull(want={"e": []})["e"].shape == (0, 2)
    assert plug.sparse["e"][1:] == (100, 2, np.dtype("f4"), "u32", 6) and [table.name for table in plug.tables] == ["w"]


def test_flat_values_and_other_kinds_of_numbers_fit(plugged: Any) -> None:
    plug, agent = plugged(job())
    plug.push({"e": (range(2), [1, 2, 3, 4]), "s": (["k"], np.array([[7]], np.int32))})
    plug.push({"e": ([0], np.float64([[0.5, 0.25]]))}, wait=False)
    plug.tick(timeout=20)
    assert table_rows(agent, "e") == {0: [1.5, 2.25], 1: [3, 4]} and list(table_rows(agent, "s").values()) == [[7]]


@pytest.mark.parametrize(
    ("g", "want", "code", "words"),
    [
        ({"e": ([-1], [[1, 2]])}, None, "RANGE", "rows of table e from -1 to -1: the index is u32"),
        ({"e": ([1 << 32], [[1, 2]])}, None, "RANGE", "the index is u32"),
        ({"e": ([0.5], [[1, 2]])}, None, "FORMAT", "one array of whole numbers, not float64"),
        ({"e": ([[1]], [[1, 2]])}, None, "FORMAT", "shape (1, 1)"),
        ({"e": ([1, 2], [[1, 2]])}, None, "SIZE", "2 rows of table e need values of shape (2, 2), not (1, 2)"),
        ({"e": ([1], [[1j, 2]])}, None, "RANGE", "complex128 cannot become float32"),
        ({"s": (["a"], [[0.5]])}, None, "RANGE", "float64 cannot become int64"),
        ({"e": [[1, 2], [3, 4], [5, 6]]}, None, "FORMAT", "push a pair (rows, values)"),
        ({"e": (range(7), np.zeros((7, 2)))}, None, "RANGE", "one request takes at most 6"),
        ({"s": ("word", [[1]])}, None, "FORMAT", "give a list of str"),
        ({"s": ([b"word"], [[1]])}, None, "FORMAT", "give a list of str"),
        ({"s": (["a", "b\nc"], [[1], [2]])}, None, "FORMAT", "key 1 of table s holds a newline"),
        (None, {"x": [1]}, "RANGE", "the job has no sparse table x; it has e, f, s"),
        ({"x": ([1], [[1, 2]])}, None, "RANGE", "the job has no sparse table x; it has e, f, s"),
        ({"v": np.zeros(3)}, {"e": [1]}, "RANGE", "there is no table 'v'; known are w"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_anything_is_asked(plugged: Any, g: Any, want: Any, code: str, words: str) -> None:
    plug, agent = plugged(job())
    found, text = failed(lambda: plug.step(g, want=want))
    assert found == code and words in text
    assert agent.lines == [[]] and plug.clock == 0


def test_w_beside_rows_needs_its_g(plugged: Any) -> None:
    plug, agent = plugged(job())
    w = np.zeros(3)
    assert failed(lambda: plug.step({"e": ([1], [[1, 2]])}, w))[0] == "FORMAT"
    assert plug.pull(w, want={"e": [1]}) and agent.lines == [["pull 1 0 n=3 table=e want=1"]]
    plug.grad("w")[:] = 4  # in place: told by its own name
    assert plug.step({"w": plug.grad("w"), "e": ([1], [[1, 2]])}, w, want={"e": [1]})["e"].tolist() == [[1, 2]]
    assert w.tolist() == [4, 4, 4] and plug.param("w").tolist() == [4, 4, 4]


def test_alone_rows_are_nothing() -> None:
    plug = attach({})
    assert plug.step({"e": ([1], [[1, 2]])}, want={"e": [1]}) == {} and plug.pull(want={"e": [1]}) == {} and plug.pushpull(None, want={}) == {}
    assert plug.push({"e": ([1], [[1, 2]])}, wait=False) is False and plug.tick(timeout=1) is False and not plug.stopped
    assert plug.next() is None and list(plug.pieces()) == []
    assert list(plug.pieces(alone=["a", "b"])) == [Piece("a", 0, 0), Piece("b", 1, 0)]


def test_pieces_end_with_the_list_and_with_the_stop_rule(plugged: Any) -> None:
    plug, _agent = plugged(job(DENSE, pieces=3, passes=2))
    assert [(piece.turn, piece.number, piece.text) for piece in plug.pieces()] == [(turn, n, f"piece-{n}") for turn in (0, 1) for n in range(3)]
    plug, _agent = plugged(job(DENSE, pieces=3, passes=2), "stop@4")
    assert [piece.number for piece in plug.pieces() if plug.step([1, 2, 3])] == [0, 1] and plug.stopped


def test_at_the_stop_rule_rows_are_pulled_all_the_same(plugged: Any) -> None:
    plug, _agent = plugged(job(), "stop@1")
    for _clock in plug.clocks(9):
        assert plug.step({"e": ([1], [[1, 2]])}, want={"e": [1]})["e"].tolist() == [[1, 2]]
    assert plug.clock == 1 and plug.stopped
    assert plug.step({"e": ([1], [[5, 5]])}, want={"e": [1]})["e"].tolist() == [[1, 2]]


def test_a_limit_is_in_seconds(plugged: Any) -> None:
    plug, agent = plugged(job(DENSE))
    plug.step([1, 2, 3], timeout=1.5)
    plug.pull(timeout=0.0101)
    for timeout in (-1, float("nan"), 1e9):
        assert failed(lambda timeout=timeout: plug.pull(timeout=timeout))[0] == "RANGE"
    assert [line.split()[-1] for line in agent.lines[0]] == ["t=1500", "t=11"]


def test_a_step_whose_limit_is_over_counts_in_the_loop(plugged: Any) -> None:
    plug, agent = plugged(job(DENSE), "late@2:0.3")
    late = []
    for clock in plug.clocks(4):
        try:
            plug.step([1, 1, 1], timeout=0.1)
        except ChannelError as error:
            assert error.code.name == "TIMEOUT"
            late.append(clock)
    assert late == [1] and agent.server.pushes == [4]


# -- R


R_ROWS = """
source(Sys.getenv("PLUGML_R"))
p <- plugml_attach()
wrong <- function(expr) tryCatch({ expr; "nothing" }, plugml_error = function(e) e$code)
stopifnot(identical(names(plugml_tables(p)), "w"), identical(names(plugml_sparse(p)), c("e", "f", "s")),
          plugml_sparse(p)$e$rows == 100, plugml_sparse(p)$f$index == "u64", plugml_sparse(p)$s$batch == 4)
# rows of a matrix count from 1
E <- matrix(0, 100, 2)
rows <- c(100L, 1L)
W <- plugml_step(p, list(e = list(rows, matrix(c(1, 2, 3, 4), 2))), want = list(e = rows))
stopifnot(identical(names(W), "e"), identical(W$e, matrix(c(1, 2, 3, 4), 2)))
E[rows, ] <- W$e
stopifnot(wrong(plugml_pull(p, want = list(e = 0))) == "RANGE", wrong(plugml_pull(p, want = list(e = 101))) == "RANGE",
          wrong(plugml_pull(p, want = list(e = 1.5))) == "RANGE", wrong(plugml_pull(p, want = list(e = NA))) == "RANGE",
          wrong(plugml_pull(p, want = list(e = "1"))) == "FORMAT", wrong(plugml_pull(p, want = list(e = 2^32 + 1))) == "RANGE")
# keys are taken as they are
keys <- c("18446744073709551615", "9007199254740993", "00000000000000000007", "0")
plugml_push(p, list(f = list(keys, matrix(1:12, 4, byrow = TRUE))))
plugml_push(p, list(f = list(c(7, 2^53, 0), rep(0.5, 9))), wait = FALSE)
plugml_tick(p, timeout = 20)
F <- plugml_pull(p, want = list(f = keys))$f
stopifnot(identical(F[1, ], c(1, 2, 3)), identical(F[2, ], c(4, 5, 6)), identical(F[3, ], c(7.5, 8.5, 9.5)), identical(F[4, ], c(10.5, 11.5, 12.5)))
stopifnot(identical(plugml_pull(p, want = list(f = c("9007199254740992", "7")))$f[, 1], c(0.5, 7.5)))
seven <- structure(3.4584595208887258e-323, class = "integer64")  # as bit64 keeps it: a double with the bits of the number 7
stopifnot(identical(plugml_pull(p, want = list(f = seven))$f[, 1], 7.5))
stopifnot(wrong(plugml_pull(p, want = list(f = 2^53 + 2))) == "RANGE", wrong(plugml_pull(p, want = list(f = -1))) == "RANGE",
          wrong(plugml_pull(p, want = list(f = "18446744073709551616"))) == "RANGE", wrong(plugml_pull(p, want = list(f = "seven"))) == "FORMAT",
          wrong(plugml_pull(p, want = list(f = 1:6))) == "RANGE")
# strings, whole numbers, and a dense table beside them
W <- plugml_step(p, list(s = list(c("a", "b"), c(2^40, -3)), w = 1:3), want = list(s = c("b", "nobody", "a")))
stopifnot(identical(W$w, c(1, 2, 3)), identical(W$s[, 1], c(-3, 0, 2^40)))
stopifnot(wrong(plugml_push(p, list(s = list("a", 0.5)))) == "RANGE", wrong(plugml_push(p, list(s = list("a", c(1, 2))))) == "SIZE",
          wrong(plugml_push(p, list(e = list(1:2, matrix(1:4, 1))))) == "SIZE", wrong(plugml_push(p, list(e = 1:2))) == "FORMAT",
          wrong(plugml_push(p, list(s = list("a\\nb", 1)))) == "FORMAT", wrong(plugml_pull(p, want = "e")) == "FORMAT",
          wrong(plugml_push(p, list(s = list(1, 1)))) == "FORMAT")
W <- plugml_pull(p, list(w = numeric(3)), want = list(e = integer(0)))
stopifnot(identical(W$w, c(1, 2, 3)), identical(dim(W$e), c(0L, 2L)), plugml_clock(p) == 3, !plugml_stopped(p), plugml_lag(p) == 0)
plugml_bye(p)
"""


def test_r_counts_rows_of_a_matrix_from_one_and_takes_keys_as_they_are(tmp_path: Path, require: Callable[[str], None]) -> None:
    require("Rscript")
    (tmp_path / "t.R").write_text(R_ROWS)
    agent = FakeAgent(job())
    codes = run(agent, [["env", f"PLUGML_R={ENVIRONMENT['PLUGML_R']}", "Rscript", "--vanilla", str(tmp_path / "t.R")]])

    assert codes == [0]
    assert table_rows(agent, "e") == {99: [1, 3], 0: [2, 4]}
    assert sorted(table_rows(agent, "f")) == [0, 7, 1 << 53, (1 << 53) + 1, (1 << 64) - 1]
    assert agent.byes == {0}


# -- C


C_ROWS = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "plugml.h"

#define CHECK(condition) do { if (!(condition)) { fprintf(stderr, "line %d: %s\n", __LINE__, #condition); return 3; } } while (0)

int main(void)
{
    plugml *p = plugml_attach();
    float g[4] = {1, 2, 3, 4}, w[4], more[4];
    double dense[3] = {1, 2, 3}, got[3];
    uint32_t rows[2] = {7, 5}, late[2] = {5, 7};
    const char *keys[2] = {"a", "a\nb"};
    int64_t counts[2] = {1, 2};
    const plugml_table *e = plugml_table_named(p, "e");

    plugml_quiet(p, 1);
    CHECK(plugml_tables(p) == 4 && !strcmp(plugml_table_named(p, NULL)->name, "w"));
    CHECK(e && e->width == 2 && e->batch == 6 && !strcmp(e->index, "u32") && e->shape[0] == 100 && !e->count && !e->nbytes);
    CHECK(plugml_expect_rows(p, "e", "u32", "f32", 2) == 1 && plugml_expect(p, "f64", 3) == 1);
    /* a table that was put takes part without g; rows alone do not touch it */
    CHECK(plugml_put(p, "w", dense) == 1 && plugml_rows(p, "e", 2, rows, g) == 1 && plugml_want(p, "e", 2, late, w) == 1);
    CHECK(plugml_step(p, NULL, NULL) == 1 && plugml_get(p, "w", got) == 1 && got[2] == 3);
    CHECK(w[0] == 3 && w[1] == 4 && w[2] == 1 && w[3] == 2);
    CHECK(plugml_rows(p, "e", 2, rows, g) == 1 && plugml_ping(p) == 1 && plugml_tick(p) == 1); /* kept for the push */
    CHECK(plugml_push(p, NULL) == 1 && plugml_push(p, dense) == 1 && plugml_clock(p) == 2);
    /* mapped files and rows */
    CHECK(plugml_grad(p, "w") && plugml_param(p, "w"));
    ((double *)plugml_grad(p, "w"))[0] = 10;
    CHECK(plugml_want(p, "e", 1, late, more) == 1 && plugml_step(p, plugml_grad(p, NULL), plugml_param(p, NULL)) == 1);
    CHECK(((double *)plugml_param(p, "w"))[0] == 12 && more[0] == 6);
    /* mistakes */
    CHECK(plugml_put(p, "e", g) == -PLUGML_RANGE && plugml_grad(p, "e") == NULL);
    CHECK(plugml_rows(p, "s", 2, keys, counts) == 1 && plugml_push(p, NULL) == -PLUGML_FORMAT && strstr(plugml_error(p), "key 2 of table s"));
    CHECK(plugml_rows(p, NULL, 1, rows, g) == -PLUGML_RANGE && plugml_rows(p, "e", 1, rows, g) == 1);
    CHECK(plugml_push(p, NULL) == -PLUGML_RANGE && plugml_push(p, NULL) == 1); /* the second without rows: the dense table */
    CHECK(plugml_rows(p, "e", 1, rows, g) == 1 && plugml_step(p, NULL, dense) == -PLUGML_FORMAT);
    CHECK(plugml_next(p, "mine") == NULL && plugml_code(p) == PLUGML_FORMAT && plugml_piece(p) == -1);
    CHECK(plugml_ping(p) == 1 && plugml_clock(p) == 3 && !plugml_stopped(p) && plugml_lag(p) == 0);
    CHECK(plugml_expect_rows(p, "e", "u64", "f32", 2) == -PLUGML_SIZE && strstr(plugml_error(p), "u32"));
    CHECK(plugml_bye(p) == 1);
    CHECK(!strcmp(plugml_next(NULL, "mine"), "mine") && !plugml_next(NULL, NULL) && plugml_piece(NULL) == -1 && plugml_turn(NULL) == 0);
    CHECK(plugml_rows(NULL, "e", 1, rows, g) == 0 && plugml_want(NULL, "e", 1, rows, w) == 0 && plugml_push_async(NULL, NULL) == 0);
    CHECK(plugml_expect_rows(NULL, "e", "u64", "f32", 2) == 0 && plugml_stopped(NULL) == 0);
    plugml_timeout(NULL, 5);
    return 0;
}
"""


@pytest.mark.parametrize(("compiler", "standard"), [("gcc", "c99"), ("g++", "c++11")])
def test_rows_of_c_and_cpp(compiler: str, standard: str, tmp_path: Path, require: Callable[[str], None]) -> None:
    require(compiler)
    (tmp_path / "rows.c").write_text(C_ROWS)
    sanitize = ("-g", "-fsanitize=address,undefined")
    program = compile_c(tmp_path / "rows", tmp_path / "rows.c", *STRICT, *sanitize, compiler=compiler, standard=standard)
    agent = FakeAgent(job())
    with agent:
        done = subprocess.run([program], env=agent.environment(), capture_output=True, text=True, timeout=HANG_S)

    assert (done.returncode, done.stderr) == (0, "")
    assert not agent.byes and agent.server.pushes == [5]


# -- the sparse example


def test_the_sparse_example_is_the_same_alone_and_as_the_only_worker(tmp_path: Path, require: Callable[[str], None]) -> None:
    require("gcc")
    environ = {"PYTHONPATH": str(TOP)}
    subprocess.run([sys.executable, str(HASHED / "generate.py"), str(tmp_path), "2", "400"], check=True, timeout=HANG_S)
    program = compile_c(tmp_path / "trainer", HASHED / "trainer.c", *STRICT)
    spec = JobSpec("hashed", 1, (TableSpec("w", (0, 1), kind="sparse", index="u64", settings={"lr": 2.0}),))
    told = {}
    for name, command in {"c": [str(program)], "python": [sys.executable, str(HASHED / "trainer.py")]}.items():
        ends = []
        for plugged in (False, True):
            out = tmp_path / f"{name}-{plugged}.txt"
            words = [*command, str(tmp_path / "all.txt"), "2", str(out)]
            agent = FakeAgent(spec)
            with agent:
                alone = {**without(os.environ), **environ}
                done = subprocess.run(words, env={**agent.environment(), **environ} if plugged else alone, capture_output=True, text=True, timeout=HANG_S)
            assert (done.returncode, done.stderr) == (0, "")
            assert agent.server.pushes == ([32] if plugged else [0])
            ends.append((done.stdout, out.read_text()))
        assert ends[0] == ends[1]
        told[name] = ends[0]
    assert told["c"][0] == told["python"][0]
    weights = [np.array([float(line.split()[1]) for line in text.splitlines()]) for _printed, text in told.values()]
    keys = [[line.split()[0] for line in text.splitlines()] for _printed, text in told.values()]
    assert keys[0] == keys[1] and len(keys[0]) > 1000
    np.testing.assert_allclose(weights[0], weights[1], atol=1e-5)


def test_the_sparse_examples_data_are_the_same_everywhere(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(HASHED / "generate.py"), str(tmp_path), "1", "3"], check=True, timeout=HANG_S)

    text = (
        "1 user=9 item=106 city=37 hour=1 word=0 word=4391\n"
        "1 user=304 item=746 city=8 hour=3 word=600 word=1402\n"
        "1 user=153 item=76 city=0 hour=20 word=2622 word=1034\n"
    )
    assert (tmp_path / "part0.txt").read_text() == (tmp_path / "all.txt").read_text() == text
