"""`plugml conform` proves what is right, and finds what is wrong at the very sentence that is broken.

`faulty/` holds small programs that each do one thing as people do it.  They are led through all cases at once, several at
a time, while the tests wait for each.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from plugml.cli.main import main
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol import generate
from plugml.shm_protocol.conform import cases
from plugml.shm_protocol.conform.drill import drills
from plugml.shm_protocol.conform.observer import Breach
from plugml.shm_protocol.conform.prove import prove, prove_driver
from plugml.shm_protocol.conform.rules import CONSEQUENCES, RULES
from plugml.shm_protocol.conform.trial import NOTHING, Command
from plugml.shm_protocol.conform.verdict import BROKEN, OK, Found, Report, document, report, root, text

from .languages import ENVIRONMENT, EXAMPLES, HERE, TOP, compile_c

HANG_S = 120.0
FAULTY = HERE / "faulty"
AT_ONCE = 4
#: Program -> the one sentence that it breaks, and an expression for what is said about it.
BREAKS = {
    "early_bell.py": ("5.2", "the bell rang before"),
    "unflushed.py": ("5.2", "only after the bell"),
    "touches_grad.py": ("1.10", "grad was written between the bell and the reply"),
    "forgets_refused.py": ("4.5", "answered already"),
    "ignores_errors.py": ("8.2", "after VERSION came 'step 3 1'"),
    "big_endian.py": ("3.1", "read big-endian they would be 0.5"),
    "pieces.py": ("4.3", "in 4 writes"),
    "never_reads.py": ("5.8", "none was read"),
    "child_says_bye.py": ("9.9", "step 2 1"),
    "runs_alone.py": ("2.10", "as if all were well"),
    "resends.py": ("4.17", "came again"),
    "any_reply.py": ("5.4", "SEQ|was not read"),
    "moves_param.py": ("1.9", "param was moved away"),
    "no_newline.py": ("4.2", "no newline"),
    "stop_is_an_error.py": ("6.7", "step refused: STOP"),
    "starts_at_zero.py": ("4.6", "'step 1 0'"),
    "counts_again.py": ("6.10", "'step 3 1'"),
    "strict_reply.py": ("6.8", "no reply"),
    "stale_hello.py": ("5.10", "'step 42 0'"),
    "overflows.py": ("3.5", "element 3 of table w is nan"),
    "needs_a_channel.py": ("2.9", "KeyError"),
    "info_by_line.py": ("2.2", "ended with 1"),
    "any_version.py": ("2.3", "rang the bell all the same"),
    "rows_from_one.py": ("3.16", "row 4, number 1 of table e"),
    "old_encoding.py": ("3.18", "line 1 of gkey"),
    "forgets_failed.py": ("4.6", "clock 1 came, worker 0 is in clock 0"),
    "append.sh": ("3.3", ">>"),
    "comma.sh": ("3.8", "LC_NUMERIC=C"),
    "reads_much.c": ("5.5", "more than 64 bytes"),
    "polls.c": ("5.9", "it woke"),
}


def job(**more: object) -> JobSpec:
    return JobSpec("conform", 1, (TableSpec("w", (8,), dtype="f64", **more),))  # type: ignore[arg-type]


def rows_job(**more: object) -> JobSpec:
    """Tables of every index beside a dense one, and two pieces of input."""
    tables = (
        TableSpec("e", (100, 2), "sparse", optimizer="add", index="u32", batch=6), TableSpec("w", (3,), dtype="f64", optimizer="add"),
        TableSpec("f", (0, 3), "sparse", dtype="f64", optimizer="add", index="u64", batch=5),
        TableSpec("s", (0, 1), "sparse", dtype="i64", optimizer="add", index="str", batch=4),
        TableSpec("h", (10, 1), "sparse", optimizer="add", index="u32", storage="f16", batch=4),
    )  # fmt: skip
    return JobSpec("rows", 1, tables, pieces=2)


#: The jobs of faulty programs that need sparse tables: rows of two numbers.
SPARSE = {
    "rows_from_one.py": TableSpec("e", (4, 2), "sparse", dtype="f64", index="u32", batch=4),
    "old_encoding.py": TableSpec("s", (0, 2), "sparse", dtype="f64", index="str", batch=4),
}


def command(*words: str, timeout_s: float = 4.0, steps: int = 0) -> Command:
    return Command(words, {**ENVIRONMENT, "PYTHONPATH": str(TOP)}, None, timeout_s, steps)


def built(name: str, directory: Path) -> tuple[str, ...]:
    """The words that start a program of `faulty/`."""
    source = FAULTY / name
    if name.endswith(".py"):
        return (sys.executable, "-S", "-E", str(source))
    if name.endswith(".sh"):
        return ("sh", str(source))
    subprocess.run(["gcc", "-std=gnu99", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(directory / name[:-2])], check=True, timeout=HANG_S)
    return (str(directory / name[:-2]),)


class Proofs:
    """Programs that are led through their cases, several at a time, while tests wait for each."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._asked: dict[str, Future[Report]] = {}

    def ask(self, name: str, proof: Callable[..., Report], *arguments: object) -> None:
        self._asked[name] = self._pool.submit(proof, *arguments)

    def __getitem__(self, name: str) -> Report:
        return self._asked[name].result(HANG_S)


@pytest.fixture(scope="module")
def proofs(tmp_path_factory: pytest.TempPathFactory, require: Callable[[str], None]) -> Iterator[Proofs]:
    """All programs of this page, under way."""
    require("gcc")
    directory = tmp_path_factory.mktemp("compiled")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = Proofs(pool)
        for name in dict.fromkeys(("never_reads.py", *BREAKS, "honest.py")):  # the longest one first
            spec = JobSpec("conform", 1, (SPARSE[name],)) if name in SPARSE else job()
            found.ask(name, prove, command(*built(name, directory)), spec)
        for name, (words, spec, only) in right(directory).items():
            proof = prove_driver if name.startswith("drive") else prove
            found.ask(name, proof, command(*words, timeout_s=10.0), spec, only)
        yield found
        pool.shutdown(cancel_futures=True)


# -- what is wrong is found


@pytest.mark.parametrize("name", BREAKS)
def test_a_faulty_program_fails_at_the_sentence_that_it_breaks_and_no_other(name: str, proofs: Proofs) -> None:
    rule, seen = BREAKS[name]
    found = proofs[name]

    assert found.broken == (rule,), text(found, True)
    breach = next(item.breach for item in found.found if item.state == BROKEN)
    assert breach is not None and re.search(seen, breach.seen), breach


def test_a_program_that_does_everything_right_breaks_nothing(proofs: Proofs) -> None:
    found = proofs["honest.py"]

    assert found.broken == (), text(found, True)
    reached = {item.rule.number for item in found.found if item.state == OK}
    assert {rule for rule, _seen in BREAKS.values()} - reached == {"3.8", "3.16", "3.18", "4.3", "4.17"}  # no text, no rows; it truncates, and says no t=
    assert all(not outcome.hung for outcome in found.outcomes)


def test_the_programs_are_as_many_as_the_folder_holds() -> None:
    assert {path.name for path in FAULTY.iterdir() if path.suffix in (".py", ".sh", ".c")} == {*BREAKS, "honest.py"}


# -- what is right is proven


FEW = ("order", "stale", "restart", "told", "told-stop", "again", "keys")
#: Rows, keys, storage, pieces, an accepted push and a limit, as `drivers/rows.*` are told.
ROWS = (
    "rows:e:5,99,5:1", "rows:f:7,8:100", "want:f:7,8,7", "rows:s:1,2:7", "want:s:2", "want:e:99,0,5", "step", "want:e:5", "pull", "rows:h:1:2", "step:4",
    "next", "rows:e:1:1", "async", "timeout:200", "rows:e:2:1", "step", "timeout:0", "tick", "bye",
)  # fmt: skip
ROWS_CASES = ("order", "stale", "restart", "err", "keys", "alone", "timeout", "failed")
RIGHT = ("rows.py", "rows.c", "rows.dash", "rows.R", "drive.py", "drive.c", "drive.dash", "drive.bash", "drive.R", "hello.c", "hello.py", "hello.sh", "digits.c")


def right(directory: Path) -> dict[str, tuple[tuple[str, ...], JobSpec, tuple[str, ...]]]:
    """Drivers and example trainers: command, job, and the cases of an everyday run for those that take long to start; () = all."""
    drivers, hello, digits = HERE / "drivers", EXAMPLES / "hello", EXAMPLES / "digits"
    shard = directory / "shard.txt"
    shard.write_text("".join(" ".join(map(str, [label, *((label * i) % 17 for i in range(64))])) + "\n" for label in range(10)))
    trainer = compile_c(directory / "trainer", digits / "trainer.c", "-O2")
    small, added = JobSpec("hello", 1, (TableSpec("w", (4,)),)), job(optimizer="add")
    few = () if os.environ.get("PLUGML_LONG") else FEW
    found: dict[str, tuple[tuple[str, ...], JobSpec, tuple[str, ...]]] = {
        "drive.py": ((sys.executable, str(drivers / "drive.py")), added, ()),
        "drive.c": ((str(compile_c(directory / "drive", drivers / "drive.c", "-O1")),), added, ()),
        "drive.dash": (("dash", str(drivers / "drive.sh")), added, ()),
        "drive.bash": (("bash", str(drivers / "drive.sh")), added, few),
        "drive.R": (("Rscript", "--vanilla", str(drivers / "drive.R")), added, few),
        "hello.c": ((str(compile_c(directory / "hello", hello / "hello.c")), "7"), small, ()),
        "hello.py": ((sys.executable, str(hello / "hello.py"), "7"), small, ("order", "stop", "resume") if few else ()),
        "hello.sh": (("sh", str(hello / "hello.sh"), "7"), small, ()),
        "digits.c": ((str(trainer), str(shard), "7", str(directory / "out.txt")), JobSpec("digits", 1, (TableSpec("w", (650,), dtype="f64"),)), ()),
    }
    rows = {
        "rows.py": (sys.executable, str(drivers / "rows.py")), "rows.c": (str(compile_c(directory / "rows", drivers / "rows.c", "-O1")),),
        "rows.dash": ("dash", str(drivers / "rows.sh")), "rows.R": ("Rscript", "--vanilla", str(drivers / "rows.R")),
    }  # fmt: skip
    found |= {name: ((*words, *ROWS), rows_job(), ROWS_CASES if name != "rows.R" else ROWS_CASES[-2:]) for name, words in rows.items()}
    return {name: item for name, item in found.items() if shutil.which(item[0][0])}


@pytest.mark.parametrize("name", RIGHT)
def test_a_client_or_a_trainer_keeps_to_every_sentence(name: str, proofs: Proofs, require: Callable[[str], None]) -> None:
    require({"R": "Rscript", "dash": "dash", "bash": "bash"}.get(name.partition(".")[2], "sh"))
    found = proofs[name]

    assert found.broken == (), text(found, True)
    reached = {item.rule.number for item in found.found if item.state == OK}
    assert reached >= {"1.10", "4.5", "4.6", "5.2", "5.4"}, text(found, True)
    if name.startswith("rows"):
        assert reached >= {"3.14" if name != "rows.dash" else "3.20", "3.16", "3.17", "3.18", "3.19", "3.21", "4.12", "4.13", "4.14", "4.16", "4.17"}
        return
    if name.startswith("drive"):
        assert reached >= {"6.7", "6.10", "8.1", "2.2"}, text(found, True)
    if len(found.outcomes) > 20:
        assert reached >= {"2.3", "2.9", "2.10", "2.15", "5.7", "5.9", "5.10", "6.3", "6.8", "8.2", "9.7"}, text(found, True)


@pytest.mark.parametrize("dtype", ["f32", "i64"])
def test_a_driver_may_have_numbers_of_any_kind(dtype: str) -> None:
    spec = JobSpec("conform", 1, (TableSpec("w", (3, 2), dtype=dtype, optimizer="add"),))
    words = (sys.executable, str(HERE / "drivers" / "drive.py"))
    found = prove_driver(command(*words, timeout_s=10.0), spec, ("told", "init"))

    assert found.broken == (), text(found, True)


def test_a_driver_that_tells_wrong_numbers_is_found(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    source = (HERE / "drivers" / "drive.py").read_text()
    wrong.write_text(source.replace("plug.pull(w)", "plug.pull(w)\n            w[-1] += 1"))
    found = prove_driver(command(sys.executable, str(wrong), timeout_s=10.0), job(optimizer="add"), ("told",))
    told = tmp_path / "told.py"
    told.write_text(source.replace("{shown}", "{shown[:-1]}"))
    other = prove_driver(command(sys.executable, str(told), timeout_s=10.0), job(optimizer="add"), ("told",))

    assert [item.breach.seen for item in found.found if item.breach] == []  # eight numbers, six are shown: the last is none of them
    assert [item.rule.number for item in other.found if item.breach] == ["8.1", "9.7"]
    assert "is right" in next(item.breach.seen for item in other.found if item.breach)


# -- the table of sentences


def test_every_sentence_of_the_specification_has_its_place_in_the_table() -> None:
    sentences = re.findall(r"^(\d+\.\d+) ", generate.SPEC.read_text(), re.MULTILINE)
    assert list(RULES) == sentences


def test_who_is_blamed_is_checked() -> None:
    """No case, cause or consequence names a sentence that is not told of."""
    plain = cases.Plain({1: "step", 2: "step", 3: "step"}, (b"step 1 0 t=5", b"push 2 1 async=1"), frozenset({"info", "ctl"}), True, True)
    named = {rule for case in cases.cases(plain) for rule in (case.rule, *case.also, *case.blame.values()) if rule}
    named |= {*CONSEQUENCES, *(rule for rules in CONSEQUENCES.values() for rule in rules)}
    assert all(RULES[rule].checked for rule in named)
    assert all(rule.remedy for rule in RULES.values() if rule.checked)


def test_the_manual_has_every_case_and_no_other() -> None:
    manual = (TOP / "docs" / "conform.md").read_text()
    plain = cases.Plain({1: "step", 2: "step", 3: "step"}, (b"step 1 0 t=5", b"push 2 1 async=1"), frozenset({"info", "ctl"}), True, True)
    known = {case.name for case in cases.cases(plain)} | {drill.case.name for drill in drills(job(optimizer="add"))} | {"plain"}
    rows = re.findall(r"^\| (`[^|]*) \|", manual, re.MULTILINE)
    ops = {"step", "push", "pushpull", "pull", "tick", "ping", "bye"}
    assert {name for row in rows for name in re.findall(r"`([A-Za-z0-9-]+)", row)} - ops == known


def test_the_cause_is_told_and_not_what_comes_of_it() -> None:
    assert root((Breach("1.10", 1, "a"), Breach("5.8", 2, "b"))).rule == "5.8"
    assert root((Breach("3.3", 1, "a"), Breach("9.7", 2, "b"))).rule == "3.3"


# -- the command


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["conform", *words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.usefixtures("no_leaks")
def test_a_broken_sentence_is_told_with_what_was_seen_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, "--case", "order", "--", *built("touches_grad.py", Path()))

    assert code == 1 and not err
    lines = out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("BROKEN       1.10  between its bell and the reply"))
    assert [line.strip().partition(":")[0] for line in lines[at + 1 : at + 4]] == ["seen", "in", "do"]
    assert re.search(r"in: case (order|plain), request \d", lines[at + 2]), "on a busy machine a good day shows it, too"
    assert re.fullmatch(r"\d+ ok, 1 broken \(1\.10\), \d+ not reached; 2 cases in .* s", lines[-1])
    assert not any("not checked" in line for line in lines)


@pytest.mark.usefixtures("no_leaks")
def test_the_document_holds_every_sentence_and_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _err = told(capsys, "--json", "--case", "slow", "--", *built("honest.py", Path()))
    found = json.loads(out)

    assert code == 0 and found["ok"]
    assert [entry["number"] for entry in found["sentences"]] == list(RULES)
    assert {entry["state"] for entry in found["sentences"]} == {"ok", "not reached", "not checked"}
    assert all(entry["why"] for entry in found["sentences"] if entry["state"] != "ok")
    assert [case["name"] for case in found["cases"]] == ["plain", "slow"]


@pytest.mark.usefixtures("no_leaks")
def test_a_program_that_hangs_is_ended_with_all_its_children(capsys: pytest.CaptureFixture[str]) -> None:
    script = 'cd "$PLUGML_DIR" || exit 1; echo "pull 1 0" > cmd; (sleep 1000; :) & cat rep > /dev/null'
    code, out, _err = told(capsys, "--timeout", "1", "--", "sh", "-c", script)

    assert code == 1
    assert "BROKEN       5.1" in out and "no bell rang" in out


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--", "no-such-program"), "there is no such program"),
        (("--table", "w=8,optimizer=adam", "--", "true"), "optimizer sgd, add, assign"),
        (("--table", "w=x", "--", "true"), "whole number"),
        (("--driver", "--table", "e=sparse,width=2", "--", "true"), "one dense table"),
        (("--driver", "--table", "a=2", "--table", "b=2", "--", "true"), "one dense table"),
        (("--timeout", "0", "--", "true"), "timeout"),
        ((), "Missing argument"),
    ],
)
def test_usage(words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _out, err = told(capsys, *words)
    assert code == 2 and sentence in err


def test_a_case_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, _out, err = told(capsys, "--case", "bar", "--", *built("honest.py", Path()))
    assert code == 2 and "no case 'bar'" in err and "order, repeat" in err


@pytest.mark.parametrize(
    ("script", "rule", "seen"),
    [
        ("true", "5.1", "did it run alone?"),
        ("echo why >&2; exit 3", "9.7", "it ended with 3: why"),
        ("kill -9 $$", "9.7", "signal 9"),
    ],
)
def test_a_program_that_asks_nothing_proves_nothing(script: str, rule: str, seen: str) -> None:
    found = prove(command("sh", "-c", script), job())

    assert found.broken == (rule,) and len(found.outcomes) == 1
    assert seen in next(item.breach.seen for item in found.found if item.breach)
    assert sum(item.state == OK for item in found.found) == 0


def test_a_long_trainer_is_ended_by_the_stop_rule() -> None:
    words = (sys.executable, str(EXAMPLES / "hello" / "hello.py"), "100000")
    found = prove(command(*words, timeout_s=10.0, steps=4), JobSpec("hello", 1, (TableSpec("w", (4,)),)), ("resume",))

    assert found.broken == (), text(found, True)
    assert all(sum(verb == "step" for verb in outcome.plain.verbs.values()) == 4 for outcome in found.outcomes)


@pytest.mark.usefixtures("no_leaks")
def test_an_interrupt_ends_every_program(tmp_path: Path) -> None:
    """Ctrl-C reaches the command only: its programs are sessions of their own."""
    started = tmp_path / "started"
    script = f'if [ -n "$PLUGML_DIR" ]; then echo $$ >> {started}; exec sleep 1000; fi'
    words = [sys.executable, "-m", "plugml", "conform", "--timeout", "100", "--", "sh", "-c", script]
    process = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(TOP)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ticks = threading.Event()
    while not started.exists() and process.poll() is None:
        ticks.wait(0.05)
    process.send_signal(signal.SIGINT)

    assert process.wait(HANG_S) == 130
    assert not Path(f"/proc/{started.read_text().split()[0]}").exists()


def test_an_empty_report_tells_of_every_sentence() -> None:
    found: Report = report([], 0.0)
    assert [item.rule.number for item in found.found] == list(RULES)
    assert isinstance(found.found[0], Found) and NOTHING.verbs == {}
    assert document(found)["ok"] and "0 cases" in text(found, False)


def test_a_job_with_other_tables_than_the_program_is_told_so_and_leads_through_no_other_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = tmp_path / "trainer.py"
    trainer.write_text("import numpy\nfrom plugml.client import attach\nw = numpy.zeros(9)\nattach().pull(w)\n")
    assert main(["conform", "--", sys.executable, str(trainer)]) == 1
    told = capsys.readouterr().out
    assert "1 broken (9.7)" in told and "; 1 cases in" in told
    assert re.search(r"^it fails on the good day: .*SIZE: .*; give --table as for", told, re.MULTILINE)
