"""Sentences of the launcher: what a run will do, what it waits for, how it failed, how it ended.  Pure functions.

They take plain values and return text, so that the log, the terminal and the tests read the same words.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..core.clock import ASP
from ..core.errors import Code
from ..core.table import OPTIMIZERS, TableSpec
from .plan import RunPlan

NAMED_MAX = 8
SIGNALS = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
    10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ",
    31: "SIGSYS",
}  # fmt: skip
ALONE = "run the same command alone, without plugml run: it runs unplugged there"
#: How clients tell what plugml, or they themselves, have refused.
_REFUSED = re.compile(rf"\b(?:{'|'.join(code.name for code in Code if code)})(?::| seq=| at clock )")
CRASHES = (-4, -6, -7, -8, -11)  # what a program does to itself
#: What the launcher waits for while the agent has not answered.
WAITS = {
    "register": "waiting for a master to register the job",
    "attach": "waiting for a master to admit the workers",
    "opened": "waiting for the agent to open the channels",
    "standing": "waiting for the agent, which is there but does not answer",
    "exited": "waiting for the agent to close the channels",
    "export": "waiting for the tables' values",
    "model": "waiting for the tables' values, to evaluate them",
    "judging": "waiting for the last evaluation",
    "stop": "waiting for the clock to hear that the run ends",
    "checkpoint": "waiting for a checkpoint, which is made behind the next clock that is closed",
    "end": "waiting for a master to note the job's end",
}


def names(workers: Sequence[int]) -> str:
    """`worker 3`, `workers 0, 2`, `workers 0, 1, ... (12 in all)`."""
    if len(workers) == 1:
        return f"worker {workers[0]}"
    if len(workers) <= NAMED_MAX:
        return "workers " + ", ".join(map(str, workers))
    return "workers " + ", ".join(map(str, workers[:NAMED_MAX])) + f", ... ({len(workers)} in all)"


def count(number: int, thing: str) -> str:
    """`1 clock`, `2 clocks`, `3 pushes`."""
    return f"{number:,} {thing}" + ("" if number == 1 else "es" if thing.endswith("sh") else "s")


def amount(nbytes: int) -> str:
    """Bytes for a reader: exact when small, else in binary units."""
    if nbytes < 10_000:
        return f"{nbytes:,} bytes"
    value, units = float(nbytes), ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    unit = "bytes"
    while value >= 1024 and units:
        value, unit = value / 1024, units.pop(0)
    return f"{value:.1f} {unit}"


def span(us: int) -> str:
    """A duration for a reader."""
    seconds = us // 1_000_000
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7_200:
        return f"{seconds // 60} min"
    return f"{seconds // 3_600} h {seconds % 3_600 // 60} min"


def command_line(words: Sequence[str], limit: int = 200) -> str:
    """A command as one would type it, cut when very long; unprintable bytes are shown as `\\ufffd`."""
    text = " ".join(shlex.quote(word) for word in words)
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").replace("\n", "\\n")
    return text if len(text) <= limit else text[:limit] + " ..."


def signal_name(signum: int) -> str:
    return SIGNALS.get(signum, f"signal {signum}")


def ending(status: int) -> str:
    """How a process ended: `exit code 3`, `killed by SIGSEGV`."""
    return f"exit code {status}" if status >= 0 else f"killed by {signal_name(-status)}"


def when(clock: int, pushes: int) -> str:
    """How far a worker had come: `at clock 4`, `before its first push`."""
    return f"at clock {clock}" if pushes or clock else "before its first push"


def exit_code(status: int) -> int:
    """Exit code of the run for a worker's status: its own, or 128 + the signal."""
    return status if status >= 0 else 128 - status


# -- before the start -------------------------------------------------------------------------------------------------


def step_line(plan: RunPlan) -> str:
    """What a step means, once, at the start: mean or sum, and the learning rate as it is used."""
    spec = plan.spec
    combines = sorted({spec.combine_of(table) for table in spec.tables})
    pushed = "gradient" if all("lr" in OPTIMIZERS[table.optimizer] for table in spec.tables) else "push"
    pushes = count(spec.workers, pushed)
    asp = all(spec.consistency_of(table).model == ASP for table in spec.tables)
    if combines == ["mean"]:
        meaning = f"each push steps by 1/{spec.workers} of itself" if asp else f"each step averages {pushes}"
    elif combines == ["sum"]:
        meaning = "each push steps as it is" if asp else f"each step sums {pushes}"
    else:
        means = [table.name for table in spec.tables if spec.combine_of(table) == "mean"]
        meaning = f"mean for {', '.join(means)}, sum for the others"
    return joined([f"{count(spec.workers, 'worker')}, {meaning}", _lr_words(plan, combines)])


def _lr_words(plan: RunPlan, combines: list[str]) -> str:
    """`lr 0.1 unchanged (linear rule: 0.8)`, `lr 0.1 grows to 0.8 over 100 clocks (linear rule, 8 workers)`."""
    spec = plan.spec
    rates = sorted({table.setting("lr") for table in spec.tables if "lr" in OPTIMIZERS[table.optimizer]})
    if not rates:
        return ""
    shown = ", ".join(f"{rate:g}" for rate in rates)
    if spec.lr_scale == "none":
        linear = ", ".join(f"{rate * spec.workers:g}" for rate in rates)
        return f"lr {shown} unchanged" + (f" (linear rule: {linear})" if spec.workers > 1 and combines == ["mean"] else "")
    full = ", ".join(f"{rate * spec.lr_full:g}" for rate in rates)
    how = f"grows to {full} over {count(spec.lr_warmup, 'clock')}" if spec.lr_warmup else f"becomes {full}"
    return f"lr {shown} {how} ({'linear' if spec.lr_scale == 'linear' else 'square root'} rule, {count(spec.workers, 'worker')})"


def owner_line(table: TableSpec, combine: str) -> str:
    """Who owns the step of a table, and so what its programs push."""
    kind = f", kept as {table.storage_name}" if table.storage_name != table.dtype else ""
    if table.kind == "sparse":
        rows = count(table.rows, "row") if table.rows else "rows"
        shape = f"sparse, {rows} of {table.width} {table.dtype}{kind}, named by {table.index_name}, at most {table.batch_rows:,} in a request"
    else:
        shape = f"{'x'.join(map(str, table.shape))} {table.dtype}{kind}, order {table.order}"
    head = f"table {table.name}: {shape}, init {table.init}, {combine}, {table.optimizer}"
    if table.optimizer == "add":
        return f"{head}: push finished steps (new - old) or counts; the program owns the step"
    if table.optimizer == "assign":
        return f"{head}: push whole values, which take the place of the old ones"
    settings = " ".join(f"{key}={table.setting(key):g}" for key in OPTIMIZERS[table.optimizer])
    return f"{head} {settings}: push gradients; the servers own the step, the program's own lr is not used"


def reproducible_line(plan: RunPlan) -> str:
    models = {plan.spec.consistency_of(table).model for table in plan.spec.tables}
    if models == {"bsp"}:
        return "bsp: the same seed and number of workers give the same bits again"
    return f"{plan.spec.consistency}: two runs differ in the last digits (only bsp gives the same bits again)"


def copies_line(copies: int, min_insync: int = 1) -> str:
    """What may happen to servers, by the number of copies of each range.

    >>> copies_line(2)
    '2 copies of each range: any one server may die'
    >>> copies_line(3, 2)
    '3 copies of each range: any two servers may die; with fewer than 2 copies training waits for another'
    """
    if copies == 1:
        return "1 copy of each range: a server that dies ends the job"
    text = f"{copies} copies of each range: any {'one server' if copies == 2 else 'two servers'} may die"
    return text + (f"; with fewer than {min_insync} copies training waits for another" if min_insync > 1 else "")


def planned_copies(plan: RunPlan) -> str:
    """The same before the start, when only a private cluster's number of servers is known."""
    spec = plan.spec
    if plan.cluster and not spec.copies:
        return f"copies of each range: as cluster {plan.cluster} has it, mostly 2 where it has two servers"
    return copies_line(spec.with_copies(plan.servers).copies, spec.min_insync)


# -- waits ------------------------------------------------------------------------------------------------------------


def wait_line(job: str, clock: int, worker: int, silent_us: int, spoke: bool, state: str, pid: int) -> str:
    """Why the clock does not close: one sentence about one worker."""
    head = f"clock {clock}: waiting for worker {worker}"
    if state in ("T", "t"):
        return f"{head}, which is stopped by a signal (kill -CONT {pid} lets it go on)"
    if not spoke:
        return (
            f"{head}, which has not said hello for {span(silent_us)}: its program (pid {pid}) has not touched its channel. "
            f"If it is not to take part, unplug it: plugml channel --close {job}.{worker}"
        )
    return f"{head}, last seen {span(silent_us)} ago (pid {pid}). Without it the others go on after: plugml channel --close {job}.{worker}"


# -- failures and the end ---------------------------------------------------------------------------------------------


def failure_lines(
    worker: int, host: str, command: Sequence[str], status: int, gen: int, when: str, tail: Sequence[str], last_error: str, log: str
) -> str:
    """Everything that a person needs about a program that failed."""
    lines = [f"worker {worker} on {host} failed: {ending(status)}, generation {gen}, {when}"]
    lines.append(f"  command: {command_line(command)}")
    if last_error:
        lines.append(f"  its last error from plugml: {last_error}")
    if tail:
        lines.append("  its last lines:")
        lines += [f"    {line}" for line in tail]
        lines.append(f"  whole output: {log}")
    else:
        lines.append("  it printed nothing")
    if (advice := hint(status)) != ALONE or not (last_error or any(_REFUSED.search(line) for line in tail)):
        lines.append(f"  try: {advice}")  # alone it would not be refused
    return "\n".join(lines)


def hint(status: int) -> str:
    """What to try after such an end."""
    if status == 127:
        return "127 is a shell's word for a command that was not found: check the path inside the script"
    if status == 126:
        return "126 is a shell's word for a file that is not executable: chmod +x it"
    if status == 137:
        return "137 is a shell's word for SIGKILL: was memory short? (dmesg tells) fewer workers need less"
    if status == -9:
        return "was memory short? (dmesg tells) fewer workers need less"
    if status in CRASHES:
        return "run the same command alone, without plugml run, under a debugger: it runs unplugged there"
    return ALONE


def uneven(clocks: Mapping[int, int]) -> str:
    """Workers that did another number of clocks than most, or "": a short run must not pass for a full one.

    >>> uneven({0: 10, 1: 3, 2: 10})
    'worker 1: 3 clocks, others 10'
    """
    counts = list(clocks.values())
    if len(set(counts)) < 2:
        return ""
    usual = max(sorted(set(counts), reverse=True), key=counts.count)
    odd = [f"worker {worker}: {count(number, 'clock')}" for worker, number in sorted(clocks.items()) if number != usual]
    more = f", and {len(odd) - NAMED_MAX} more" if len(odd) > NAMED_MAX else ""
    return ", ".join(odd[:NAMED_MAX]) + more + f", others {usual}"


def staleness_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """How old the values were that pushes were computed on, "" where nothing could be (BSP).

    >>> staleness_line([{"worker": 1, "table": "w", "versions": 30, "versions_max": 7, "pushes": 10, "clocks": 4, "clocks_max": 2, "count": 10}])
    'staleness: a push came 3.0 versions late on average, at most 7 (worker 1, table w); a pull was at most 2 clocks ahead of the slowest'
    """
    pushes = sum(int(row["pushes"]) for row in rows)
    if not any(row["versions_max"] or row["clocks_max"] for row in rows):
        return ""
    worst = max(rows, key=lambda row: row["versions_max"])
    mean = sum(row["versions"] for row in rows) / max(1, pushes)
    ahead = count(max(int(row["clocks_max"]) for row in rows), "clock")
    return (
        f"staleness: a push came {mean:.1f} versions late on average, at most {worst['versions_max']} (worker {worst['worker']}, table {worst['table']}); "
        f"a pull was at most {ahead} ahead of the slowest"
    )


def _at(reading: Mapping[str, Any]) -> str:
    value = reading["value"]
    return f"{'not finite' if value is None else format(value, 'g')} at clock {reading['clock']:,}"


def joined(parts: Iterable[str]) -> str:
    return "; ".join(part for part in parts if part)


def closing_lines(summary: Mapping[str, Any]) -> list[str]:
    """The last lines of a run: state, clocks, what is not even, restarts, where the result lies."""
    workers = summary["workers"]
    clocks = sorted({worker["clocks"] for worker in workers})
    clocks_text = count(clocks[0], "clock") if len(clocks) == 1 else f"{clocks[0]:,} to {clocks[-1]:,} clocks"
    counts = [worker["pushes"] for worker in workers]
    pushes = count(sum(counts), "push") if None not in counts else "pushes not known: the agent was not there to count them"
    restarts = sum(worker["restarts"] for worker in workers)
    lines = [
        joined([
            f"job {summary['job']} {summary['state']}",
            f"{count(len(workers), 'worker')}, {clocks_text} each, {pushes}",
            count(restarts, "restart") if restarts else "",
            f"{summary['seconds']:.1f} s",
        ])
    ]  # fmt: skip
    if summary["stopped_by"]:
        lines.append(f"ended by its rule: {summary['stopped_by']}")
    if summary["best"]:
        kept = f", kept in {summary['best']['dir']}" if summary["best"].get("dir") else ""
        last = summary["evaluations"][-1]
        lines.append(f"best {summary['metric']} {_at(summary['best'])}{kept}; last {_at(last)}")
    if summary["uneven"]:
        lines.append(f"not all did the same: {summary['uneven']}")
    if line := staleness_line(summary["staleness"]):
        lines.append(line)
    lines += [f"remember: {text}" for text in summary["warnings"]]
    if summary["result"]:
        lines.append(f"result in {summary['result']}: {', '.join(summary['files'])}")
    return lines
