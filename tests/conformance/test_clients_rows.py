"""Sparse rows, pieces of input, accepted pushes, limits, stop and semaphores: the same words to all clients, the same answers.

The program is `drivers/rows.*`; it prints one line for each request that it was told to make.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol.conform.faults import Fault
from plugml.shm_protocol.info import without

from .compiled import RECIPES
from .fake_agent import FakeAgent
from .languages import ENVIRONMENT, Language, Toolchains

HANG_S = 60.0  # a hang limit, far above what any of these takes
LANGUAGES = ("python", "python-plain", "c", "cpp", "r", "dash", "bash", "mksh", *RECIPES)
#: Two keys with one hash.
COLLIDING = ("8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ")
TOP_KEY = str((1 << 64) - 1)
AGAIN = Fault("again", 2)

pytestmark = pytest.mark.usefixtures("no_leaks")


class Ran(NamedTuple):
    lines: list[str]
    errors: str
    code: int


@pytest.fixture(autouse=True)
def own_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest, toolchains: Toolchains) -> Language:
    return toolchains.language(request.param)


def sparse(name: str, index: str, rows: int, width: int, dtype: str, batch: int) -> TableSpec:
    return TableSpec(name, (rows, width), kind="sparse", dtype=dtype, optimizer="add", index=index, batch=batch)


TABLES = (
    sparse("e", "u32", 100, 2, "f32", 6),
    TableSpec("w", (3,), dtype="f64", optimizer="add"),
    sparse("f", "u64", 0, 3, "f64", 5),
    sparse("s", "str", 0, 1, "i64", 4),
)
ONLY_ROWS = (TABLES[0], TABLES[3])
DENSE = (TABLES[1],)


def job(tables: tuple[TableSpec, ...] = TABLES, **more: Any) -> JobSpec:
    return JobSpec("rows", more.pop("workers", 1), tables, combine="sum", **more)


def drive(language: Language, environ: dict[str, str], *ops: str) -> Ran:
    done = subprocess.run(
        [*language.rows, *ops], env={**environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=HANG_S, stdin=subprocess.DEVNULL
    )
    return Ran(done.stdout.splitlines(), done.stderr, done.returncode)


def driven(language: Language, spec: JobSpec, faults: tuple[str, ...], *ops: str, **more: Any) -> tuple[Ran, FakeAgent]:
    """The driver under a scripted agent; the agent is closed when this returns."""
    agent = FakeAgent(spec, faults, **more)
    with agent:
        ran = drive(language, agent.environment(), *ops)
    return ran, agent


def ok(op: str, clock: int, shown: str = "", **more: int) -> str:
    """The line of a request that was carried out."""
    values = {"clock": clock, "stopped": 0, "lag": 0, **more}
    return f"{op} 1 OK " + " ".join(f"{key}={value}" for key, value in values.items()) + (f" {shown}" if shown else "")


def refused(op: str, code: str, clock: int) -> str:
    return f"{op} E {code} clock={clock} stopped=0 lag=0"


def check(ran: Ran, agent: FakeAgent, lines: list[str]) -> None:
    assert ran.lines == lines, ran.errors
    assert not agent.remarks


# -- rows


TALK = (
    "rows:e:5,99,5:1", f"rows:f:{TOP_KEY},7:100", f"want:f:7,{TOP_KEY},7", "rows:s:äöü,b:7", "want:s:b", "want:e:99,0,5", "step",
    "want:e:5", "pull",
    "want:s:nobody,b", "pull:",
    "rows:s:b,a b:1", "want:s:a b,b", "step:4",
    "rows:e::0", "want:f:12345678901234567890", "rows:f:12345678901234567890,9007199254740993:0.5", "pushpull",
    "tick",
    "want:f:9007199254740993,12345678901234567890", "pull",
    "rows:e:0:1", "push", "rows:e:0:2", "rows:f:1:3", "push:1", "want:e:0", "step:0",
    "want:e:0", "want:f:1", "pull:",
    "bye",
)  # fmt: skip
TOLD = [
    ok("step", 1, "f=110,111,112;100,101,102;110,111,112 s=17 e=11,12;0,0;22,24"),
    ok("pull", 1, "e=22,24"),
    ok("pull:", 1, "w=0,0,0 s=0;17"),
    ok("step:4", 2, "w=4,5,6 s=11;18"),
    ok("pushpull", 2, "f=0,0,0"),
    ok("tick", 3),
    ok("pull", 3, "f=10.5,11.5,12.5;0.5,1.5,2.5"),
    ok("push", 3),
    ok("push:1", 3),
    ok("step:0", 4, "w=5,8,11 e=3,5"),
    ok("pull:", 4, "w=5,8,11 e=3,5 f=3,4,5"),
]


def table_rows(agent: FakeAgent, name: str) -> dict[int, list[float]]:
    """What the server behind the agent has of a sparse table."""
    table = next(table for table in agent.server.tables if table.spec.name == name)
    return {row: values.tolist() for row, values in table.rows.items()}


def check_talk(ran: Ran, agent: FakeAgent) -> None:
    check(ran, agent, TOLD)
    assert ran.code == 0
    assert agent.byes == {0} and agent.server.pushes == [6]
    assert table_rows(agent, "e") == {5: [22, 24], 99: [11, 12], 0: [3, 5]}
    names = next(table for table in agent.server.tables if table.spec.name == "s").names
    assert sorted(key.decode() for key in names.values()) == ["a b", "b", "äöü"]


def test_rows_of_three_indexes_beside_a_dense_table(language: Language) -> None:
    ran, agent = driven(language, job(), (), *TALK)

    check_talk(ran, agent)
    assert not ran.errors


@pytest.mark.parametrize("faults", [("repeat@*",), ("stale@*",), ("strange@*",)])
def test_repeated_stale_and_strange_replies_change_nothing(language: Language, faults: tuple[str, ...]) -> None:
    ran, agent = driven(language, job(), faults, *TALK)

    check_talk(ran, agent)
    assert agent.fired


def test_an_agent_that_dies_before_each_of_its_stores_is_not_noticed(language: Language) -> None:
    ran, agent = driven(language, job(), ("restart@*:*",), *TALK)

    check_talk(ran, agent)
    assert agent.deaths > 50 and not ran.errors


def test_a_job_of_sparse_tables_only(language: Language) -> None:
    ran, agent = driven(
        language, job(ONLY_ROWS), (), "pull", "step", "rows:s:x:5", "rows:e:1:2", "want:s:x,y", "step", "want:e:1", "pull", "step", "bye"
    )

    check(ran, agent, [ok("pull", 0), ok("step", 1), ok("step", 2, "s=5;0"), ok("pull", 2, "e=2,3"), ok("step", 3)])
    assert ran.code == 0 and agent.byes == {0}


def test_rows_alone_are_nobodys(language: Language) -> None:
    ran = drive(language, without(os.environ), "rows:e:1,2:5", "want:e:3", "step:4", "rows:e:1:5", "push", "async:3", "pull:", "tick", "next", "bye")

    assert ran.lines == [f"{op} 0 OK clock=0 stopped=0 lag=0" for op in ("step:4", "push", "async:3", "pull:", "tick")] + [
        "next 0 OK clock=0 stopped=0 lag=0 none"
    ]
    assert ran.code == 0 and not ran.errors


def test_a_locale_without_umlauts_changes_no_key(language: Language) -> None:
    agent = FakeAgent(job())
    with agent:
        ran = drive(language, {**agent.environment(), "LC_ALL": "C"}, *TALK)

    check_talk(ran, agent)


# -- refusals: nothing was applied, and the next request goes on


@pytest.mark.parametrize(
    ("ops", "code", "word"),
    [
        (("rows:e:3,100:1",), "RANGE", "100"),
        (("want:e:4294967295",), "RANGE", "4294967295"),
        (("rows:e:1,2,3,4,5,6,7:1",), "RANGE", "6"),
        (("rows:none:1:1",), "RANGE", "the job has no sparse table none; it has e, f, s"),
        (("want:w:1",), "RANGE", "the job has no sparse table w; it has e, f, s"),
        (("want:none:1",), "RANGE", "the job has no sparse table none; it has e, f, s"),
        (("rows:s:" + "k" * 256 + ",a:1",), "FORMAT", "line 1 of gkey"),
        (("want:s:a," + "k" * 256,), "FORMAT", "line 2 of wkey"),
        (("rows:e:1:nan",), "NONFINITE", "e"),
        ((f"rows:s:{COLLIDING[0]},{COLLIDING[1]}:1",), "COLLIDE", COLLIDING[1]),
        ((f"rows:s:{COLLIDING[0]}:1", f"want:s:{COLLIDING[1]}"), "COLLIDE", COLLIDING[0]),
    ],
)
def test_a_refused_row_refuses_the_whole_request(ops: tuple[str, ...], code: str, word: str, language: Language) -> None:
    ran, agent = driven(language, job(), (), "rows:f:1:5", *ops, "step:7", "want:f:1", "pull:", "bye")

    check(ran, agent, [refused("step:7", code, 0), ok("pull:", 0, "w=0,0,0 f=0,0,0")])
    assert code in ran.errors and word in ran.errors
    assert agent.server.pushes == [0] and agent.byes == {0}


def test_a_key_that_collides_with_one_of_before_is_named(language: Language) -> None:
    ran, agent = driven(
        language, job(), (), f"rows:s:{COLLIDING[0]}:1", "step", f"rows:s:{COLLIDING[1]}:1", "step", f"want:s:{COLLIDING[1]}", "pull",
        f"want:s:{COLLIDING[0]}", "pull", "bye",
    )  # fmt: skip

    check(ran, agent, [ok("step", 1), refused("step", "COLLIDE", 1), refused("pull", "COLLIDE", 1), ok("pull", 1, "s=1")])
    assert all(key in ran.errors for key in COLLIDING)


@pytest.mark.parametrize("name", ["c", "dash"])  # the others take tables by name, each of which is there once
def test_a_table_that_is_named_twice_is_refused(name: str, toolchains: Toolchains) -> None:
    ran, agent = driven(
        toolchains.language(name), job(), (), "rows:e:1:5", "rows:e:2:5", "step:7", "want:e:1", "want:e:2", "pull:", "want:e:1", "pull", "bye"
    )

    check(ran, agent, [refused("step:7", "FORMAT", 0), refused("pull:", "FORMAT", 0), ok("pull", 0, "e=0,0")])


def test_dense_tables_are_pulled_where_they_are_pushed(toolchains: Toolchains) -> None:
    """Beside rows a `w` without a `g` would push what lies in `grad` by chance."""
    for name in ("python", "c", "dash"):
        ran, agent = driven(toolchains.language(name), job(), (), "rows:e:1:5", "step:", "want:e:1", "pull:", "bye")
        check(ran, agent, [refused("step:", "FORMAT", 0), ok("pull:", 0, "w=0,0,0 e=0,0")])


# -- pieces of input


def test_pieces_come_once_a_pass_with_their_numbers(language: Language, tmp_path: Path) -> None:
    names = ["a file.txt", " leading and trailing ", "äöü", "plain"]
    (tmp_path / "pieces").write_text("".join(name + "\n" for name in names), encoding="utf-8")
    spec = job(DENSE, pieces=4, passes=2, settings={"pieces_file": str(tmp_path / "pieces")})
    ran, agent = driven(language, spec, ("restart@*:*", "repeat@2"), "next", "step:1", *["next"] * 8, "next", "step:1", "bye")

    told = [f"{number}:{turn}:{name}" for turn in (0, 1) for number, name in enumerate(names)]
    expected = [ok("next", 0, told[0]), ok("step:1", 1, "w=1,2,3"), *(ok("next", 1, text) for text in told[1:]), *[ok("next", 1, "none")] * 2]
    check(ran, agent, [*expected, ok("step:1", 2, "w=2,4,6")])
    assert ran.code == 0 and agent.byes == {0}


def test_a_job_without_pieces_says_so(language: Language) -> None:
    ran, agent = driven(language, job(DENSE), (), "next", "step:1", "bye")

    check(ran, agent, [refused("next", "FORMAT", 0), ok("step:1", 1, "w=1,2,3")])
    assert "no list of pieces" in ran.errors


# -- the stop rule


def test_after_the_stop_rule_only_pulls_are_served(language: Language) -> None:
    spec = job(pieces=1, passes=1)
    ran, agent = driven(
        language, spec, ("stop@2",), "rows:e:1:5", "step:1", "rows:e:1:5", "step:1", "rows:e:1:5", "step:1", "push:1", "async:1",
        "pushpull:1", "tick", "want:e:1", "pull:", "next", "ping", "bye",
    )  # fmt: skip

    def after(op: str, shown: str = "") -> str:
        return ok(op, 2, shown, stopped=1)

    ends = [f"{op} S STOP clock=2 stopped=1 lag=0" for op in ("step:1", "push:1", "async:1", "pushpull:1", "tick")]
    check(ran, agent, [
        ok("step:1", 1, "w=1,2,3"), after("step:1", "w=2,4,6"), *ends, after("pull:", "w=2,4,6 e=10,12"), after("next", "0:0:piece-0"), after("ping"),
    ])  # fmt: skip
    assert ran.code == 0 and not ran.errors and agent.byes == {0}


# -- accepted pushes and limits


def test_an_accepted_push_is_carried_out_behind(language: Language) -> None:
    late = tuple(f"late@{seq}:0.1" for seq in range(1, 6))
    ops = [f"rows:e:{row}:1 async:{row}" for row in range(1, 6)]
    ran, agent = driven(language, job(), late, *" ".join(ops).split(), "want:e:1,2,3,4,5", "step:0", "bye")

    accepted = [ok(f"async:{row}", 0) for row in range(1, 6)]
    check(ran, agent, [*accepted, ok("step:0", 1, "w=15,21,27 e=1,2;1,2;1,2;1,2;1,2")])
    assert [" async=1" in line for line in agent.lines[0]] == [True] * 5 + [False] * 2
    assert agent.server.pushes == [6]


@pytest.mark.parametrize("faults", [("restart@*:*",), ("late@1:0.2", "restart@1:3", "restart@2:1")])
def test_an_agent_that_dies_loses_and_doubles_no_accepted_push(language: Language, faults: tuple[str, ...]) -> None:
    ran, agent = driven(language, job(), faults, "rows:s:k:3", "async:1", "rows:s:k:4", "async:1", "want:s:k", "step:1", "bye")

    check(ran, agent, [ok("async:1", 0), ok("async:1", 0), ok("step:1", 1, "w=3,6,9 s=7")])
    assert agent.server.pushes == [3] and agent.deaths


def test_an_accepted_push_that_fails_is_told_by_the_next_request(language: Language) -> None:
    ran, agent = driven(language, job(), ("fail@2:NOSERVER",), "step:1", "async:5", "step:1", "step:1", "bye")

    check(ran, agent, [ok("step:1", 1, "w=1,2,3"), ok("async:5", 1), refused("step:1", "NOSERVER", 1), ok("step:1", 2, "w=2,4,6")])
    assert "push seq=2, accepted before, failed" in ran.errors


def test_a_limit_that_is_over_is_told_and_the_step_counts(language: Language) -> None:
    """The step was accepted: its clock has ended, its push is in; only its values are still to be pulled."""
    ran, agent = driven(
        language, job(), ("late@2:0.5", "late@3:0.5"), "timeout:50", "step:1", "rows:e:2:7", "step:1", "pull:", "timeout:0", "want:e:2", "pull:", "bye"
    )

    check(ran, agent, [
        ok("step:1", 1, "w=1,2,3"), refused("step:1", "TIMEOUT", 2), refused("pull:", "TIMEOUT", 2), ok("pull:", 2, "w=2,4,6 e=7,8"),
    ])  # fmt: skip
    assert [re.findall(r" t=(\d+)", line) for line in agent.lines[0]] == [["50"], ["50"], ["50"], [], []]
    assert agent.server.pushes == [2] and agent.byes == {0}


def test_every_verb_that_may_wait_has_the_limit(language: Language) -> None:
    ran, agent = driven(language, job(), (), "timeout:5000", "push:1", "async:1", "pushpull:1", "tick", "pull:", "ping", "bye")

    assert [line.split()[0] for line in agent.lines[0] if " t=5000" in line] == ["push", "push", "pushpull", "clock", "pull"]
    assert ran.lines[-1] == ok("ping", 1)


@pytest.mark.parametrize("name", ["python", "c-unpaused", "r", "dash", "bash", "mksh", *RECIPES])
def test_after_sixty_times_again_it_is_an_error_and_the_next_request_goes_on(name: str, toolchains: Toolchains) -> None:  # SPEC 6.10
    agent = FakeAgent(job(DENSE))
    scripted = agent.script.fault
    agent.script.fault = lambda kind, worker, seq: AGAIN if kind == "again" and seq == 2 and len(agent.lines[0]) <= 61 else scripted(kind, worker, seq)
    with agent:
        environ = {**agent.environment(), "UNPAUSED": "1"}
        ran = drive(toolchains.language(name), environ, "step:1", "step:5", "step:1", "bye")

    check(ran, agent, [ok("step:1", 1, "w=1,2,3"), refused("step:5", "AGAIN", 1), ok("step:1", 2, "w=2,4,6")])
    assert len({line for line in agent.lines[0][1:61]}) == 1
    assert [line.split()[:2] for line in agent.lines[0][60:]] == [["step", "2"], ["step", "2"], ["bye", "3"]]


# -- how far the slowest is behind


def test_the_lag_is_told(language: Language) -> None:
    spec = job(DENSE, workers=2, consistency="asp")
    ran, _agent = driven(language, spec, (), "step:0", "step:0", "ping", "tick", "pull:", "bye")

    shown = "w=0,2,4"
    assert ran.lines[1:] == [
        ok("step:0", 2, shown, lag=2), ok("ping", 2, lag=2), ok("tick", 3, lag=3), ok("pull:", 3, shown, lag=3),
    ]  # fmt: skip


# -- semaphores


@pytest.fixture
def semaphores(require: Callable[[str], None]) -> None:
    require("module:posix_ipc")


WITHOUT_SEMAPHORES = [name for name in RECIPES if name != "hpp"]
SEM_LANGUAGES = pytest.mark.parametrize("name", ["python", "python-plain", "c", "cpp"])


@pytest.mark.usefixtures("semaphores")
@SEM_LANGUAGES
@pytest.mark.parametrize("faults", [(), ("repeat@*",), ("stale@*", "slow@3:0.1"), ("restart@*:*",)])
def test_a_program_woken_by_a_semaphore(name: str, faults: tuple[str, ...], toolchains: Toolchains) -> None:
    ran, agent = driven(toolchains.language(name), job(bell="sem"), faults, *TALK)

    check_talk(ran, agent)
    assert not ran.errors


@pytest.mark.usefixtures("semaphores")
@SEM_LANGUAGES
@pytest.mark.parametrize("fault", ["gone@2", "vanish@2"])
def test_a_program_that_waits_for_a_semaphore_sees_the_end(name: str, fault: str, toolchains: Toolchains) -> None:
    agent = FakeAgent(job(bell="sem"), (fault,))
    with agent:
        ran = drive(toolchains.language(name), agent.environment(), "step:1", "step:1", "step:1", "bye")

    assert ran.lines == [ok("step:1", 1, "w=1,2,3"), refused("step:1", "GONE", 1), refused("step:1", "GONE", 1)]
    assert ran.code > 0


@pytest.mark.usefixtures("semaphores")
@SEM_LANGUAGES
def test_posts_for_an_earlier_program_are_not_taken_for_ones_own(name: str, toolchains: Toolchains) -> None:
    agent = FakeAgent(job(bell="sem"), ("repeat@*",))
    with agent:
        drive(toolchains.language(name), agent.environment(), "step:1", "push:1", "end")
        ran = drive(toolchains.language(name), agent.environment(), "step:1", "step:1", "bye")

    assert ran.lines == [ok("step:1", 2, "w=3,6,9"), ok("step:1", 3, "w=4,8,12")]
    assert agent.server.pushes == [4]


@pytest.mark.usefixtures("semaphores")
@pytest.mark.parametrize("name", ["r", "dash", "bash", "mksh", *WITHOUT_SEMAPHORES])
def test_who_cannot_wait_for_a_semaphore_refuses(name: str, toolchains: Toolchains) -> None:  # SPEC 2.15
    ran, agent = driven(toolchains.language(name), job(bell="sem"), (), "step:1", "bye")

    assert "VERSION: " in ran.errors and "bell=fifo" in ran.errors
    assert ran.code > 0 and all(" E VERSION " in line for line in ran.lines)
    assert agent.server.pushes == [0]
