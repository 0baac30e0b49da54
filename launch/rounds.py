"""Between an unchanged program and its channel: a process that writes the model file, runs the program, and pushes what came of it.

    pull -> write FILE -> the program, from its start to its end -> read FILE, judge it -> push the difference -> next round

A process of its own for each worker, started by the launcher in the worker's private directory, and an ordinary client of
the channel.  Whatever is wrong with the file, nothing of that round is pushed.  A program that a signal killed takes this
process with it, the same way, so that the launcher's rules for killed workers hold.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..client import ChannelError, Client, attach
from ..core.errors import PlugmlError, UsageError
from ..layouts import Content, Layout, LayoutError, matches, parse_layout, place_of, read, write
from ..runtime.lifeline import dying_with_us
from . import words
from .modelfile import ADD, ASSIGN, LINES, TABLE, ModelFile, Round
from .roundfiles import Listener, OwnFiles, changed, left_in, lines_in, replace_file, shared
from .rules import reading_of

MODULE = "plugml.launch.rounds"
ROUND = "{round}"


def between(told: Round | None, argv: list[str]) -> list[str]:
    """The command that runs a worker: the program itself, or this module around it."""
    if told is None:
        return argv
    return [sys.executable, "-P", "-m", MODULE, told.to_text(), "--", *argv]  # -P: no module of the user's directory instead of ours


def measure(path: str, layout: str) -> int:
    """How many numbers are in a model file.  Raises `UsageError`."""
    try:
        with open(path, "rb") as file:
            return read(file.read(), parse_layout(layout)).numbers.size
    except OSError as error:
        raise UsageError(f"--model {path}: {error.strerror}; run the program once, so that it is there") from error
    except LayoutError as error:
        raise UsageError(f"--model {path}: {error}") from error


def settle(model: ModelFile, directory: str, outs: Sequence[str], wanted: bool) -> str:
    """At the end of a run: the user's file is replaced by what the first worker of those that came to an end has left, if it is `wanted`.

    `outs` are the workers' directories, in order of their numbers.  Gives what went wrong, "" if nothing did.
    """
    paths = [path for path, _layout in model.files]
    try:
        left = [out for out in outs if all(os.path.exists(left_in(out, path)) for path in paths)]
        for path in paths if left and wanted else ():
            with open(left_in(left[0], path), "rb") as file:
                replace_file(os.path.join(directory, path), file.read())
        for out in left:
            for path in paths:
                os.unlink(left_in(out, path))
    except OSError as error:
        return f"{model.name} could not be replaced: {error.strerror}; the model is in {outs[0]}"
    return "" if left or not wanted else f"{model.name} is as it was: no worker has come to the end of a round"


class RoundError(PlugmlError):
    """A round that cannot be: nothing of it was pushed."""

    exit_code = 1


class Files:
    """The model files of one worker as one row of numbers, in the order of their names on the command line."""

    def __init__(self, told: Round, out: str) -> None:
        paths = [path for path, _layout in told.model.files]
        self.layouts = [parse_layout(layout) for _path, layout in told.model.files]
        self.places = [OwnFiles(told.directory, path, paths, told.model.side if number == 0 else (), out) for number, path in enumerate(paths)]

    def begin(self, again: bool) -> list[Content]:
        return [self._judged(place, place.lay_out(again), layout) for place, layout in zip(self.places, self.layouts)]

    def give(self, contents: list[Content], values: Any) -> list[Content]:
        """Write the files for the program, and read what they say then: they may keep fewer digits than the servers."""
        written = self.written(contents, values)
        for place, data in zip(self.places, written):
            place.give(data)
        return [self._judged(place, data, layout) for place, data, layout in zip(self.places, written, self.layouts)]

    def written(self, contents: list[Content], values: Any) -> list[bytes]:
        out = []
        for place, content, part in zip(self.places, contents, split(contents, values)):
            try:
                out.append(write(content, part))
            except LayoutError as error:
                raise RoundError(f"{place.model} cannot be written for the program: {error}") from error
        return out

    def take(self) -> list[Content]:
        found = []
        for place, layout in zip(self.places, self.layouts):
            try:
                data = place.take()
            except OSError as error:
                raise RoundError(f"{place.model} as the program left it cannot be used: {error.strerror}") from error
            found.append(self._judged(place, data, layout))
        return found

    def counters(self, given: list[Content], taken: list[Content]) -> tuple[Any, str]:
        """Numbers that the program counts for itself, and a sentence about them."""
        all_counted, said = [], ""
        for place, old, new in zip(self.places, given, taken):
            try:
                counted = matches(old, new)
            except LayoutError as error:
                raise RoundError(f"{place.model} as the program left it cannot be compared: {error}") from error
            if counted.any() and not said:
                said = f"{words.count(int(np.count_nonzero(counted)), 'whole number')} of {place.model} ({place_of(new, int(np.argmax(counted)))}) has changed: taken for a counter, which each worker has for itself"
            all_counted.append(counted)
        return np.concatenate(all_counted), said

    def _judged(self, place: OwnFiles, data: bytes, layout: Layout) -> Content:
        try:
            return read(data, layout)
        except LayoutError as error:
            raise RoundError(f"{place.model} cannot be used: {error}") from error


def joined(contents: list[Content]) -> Any:
    return np.concatenate([content.numbers for content in contents])


def split(contents: list[Content], values: Any) -> list[Any]:
    return np.split(values, np.cumsum([content.numbers.size for content in contents])[:-1])


class Rounds:
    """One worker's rounds."""

    def __init__(self, told: Round, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self.told, self.model, self.argv = told, told.model, argv
        self.files = Files(told, environ["PLUGML_OUT"])
        # The program runs alone, also one that could be plugged.
        self.environ = {name: value for name, value in environ.items() if name != "PLUGML_DIR"}
        self.said: set[str] = set()
        self.state: tuple[list[Content], Any] | None = None  # after the last whole round: the program's files, and what shall be in them

    def run(self, plug: Client, again: bool) -> None:
        """All rounds, from the clock that the job is at.  `again`: this worker's incarnation is not its first."""
        contents = self.files.begin(again)
        values = joined(contents)
        if plug.table(TABLE).elements != values.size:
            raise RoundError(f"{self.model.name} has {values.size:,} numbers, and the job shares {plug.table(TABLE).elements:,}: it has changed since the run began")
        plug.init({TABLE: values})
        plug.pull({TABLE: values})
        own = np.zeros(values.size, np.bool_)  # counters, which are this program's alone
        for clock in plug.clocks(self.model.rounds):
            given = self.files.give(contents, np.where(own, joined(contents), values))
            output = self._run_program(clock)
            try:
                taken = self.files.take()
                counted, sentence = self.files.counters(given, taken)
                weight = self._weight(output)
            except RoundError as error:
                raise RoundError(f"round {clock}: {error}. Nothing of the round was pushed") from error
            self._once("counted", sentence)
            if all(old.data == new.data for old, new in zip(given, taken)):
                self._once("same", f"round {clock}: the program has ended well and left {self.model.name} as it was: does it write to this file?")
            own |= counted
            fresh = values.copy()
            plug.step({TABLE: self._push(joined(given), joined(taken), own)}, {TABLE: fresh}, weight=weight)
            if plug.clock == clock:
                break  # the job had ended before: what this round made belongs to nobody
            contents, values = taken, fresh
            self.state = contents, np.where(own, joined(contents), values)
            for place, content in zip(self.files.places, contents):
                place.accept(content.data)
            self._show(clock, output)
        self.state = contents, np.where(own, joined(contents), values)
        self.leave()

    def leave(self) -> None:
        """Leave the shared model of the last whole round in this worker's files; the launcher takes it from there."""
        if self.state is not None:
            for place, data in zip(self.files.places, self.files.written(*self.state)):
                place.give(data)
                place.leave(data)
        for place in self.files.places:
            place.clear()

    def _run_program(self, clock: int) -> str:
        argv = [word.replace(ROUND, str(clock)) for word in self.argv]
        before = shared()
        listens = bool(self.model.metric or (self.model.weight and self.model.weight != LINES))
        try:
            listener = Listener(listens)
            child = subprocess.Popen(argv, env={**self.environ, "PLUGML_CLOCK": str(clock)}, stdout=listener.stdout, stderr=listener.stderr, preexec_fn=dying_with_us())
        except OSError as error:
            raise _NotStartedError(words.command_line(argv), error) from error
        output = listener.listen(child)
        status = child.wait()
        if status < 0:
            self._note(f"round {clock}: {words.signal_name(-status)} ended {words.command_line(argv)}; nothing of the round was pushed")
            _end_like(-status)
        if status not in self.told.ok_exit:
            raise _FailedError(f"round {clock}: {words.command_line(argv)} has ended with exit code {status}; nothing of the round was pushed", status)
        for name in changed(before):
            self._once(name, f"{name}, which all workers share, has changed while the program ran; if the program writes it, say --side {name}")
        return output

    def _push(self, given: Any, taken: Any, own: Any) -> Any:
        if self.model.push == ASSIGN:
            return taken
        return np.where(own, 0.0, taken - given if self.model.push == ADD else given - taken)

    def _weight(self, output: str) -> float:
        if not self.model.weight:
            return 1.0
        if self.model.weight == LINES:
            return float(lines_in(self.told.data))
        weight = reading_of(output, self.model.weight)
        if weight is None or not 0 <= weight < float(1 << 53):
            raise RoundError(f"--weight {self.model.weight!r}: the program's output has {'no such number' if weight is None else weight}")
        return weight

    def _show(self, clock: int, output: str) -> None:
        if self.model.metric:
            found = reading_of(output, self.model.metric)
            print(f"round {clock}: {'no such number in the output' if found is None else format(found, 'g')}", flush=True)

    def _once(self, key: str, text: str) -> None:
        if text and key not in self.said:
            self.said.add(key)
            self._note(text)

    def _note(self, text: str) -> None:
        print(f"plugml: {text}", file=sys.stderr, flush=True)


class _SignalledError(Exception):
    def __init__(self, signum: int) -> None:
        self.signum = signum


class _FailedError(RoundError):
    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.exit_code = status


class _NotStartedError(RoundError):
    def __init__(self, command: str, error: OSError) -> None:
        super().__init__(f"{command} cannot be started: {error.strerror}")
        self.exit_code = 127 if isinstance(error, FileNotFoundError) else 126


def _raise(signum: int, _frame: object) -> None:
    """The run ends: the program, which was told too, is not waited for."""
    for other in (signal.SIGTERM, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)
    raise _SignalledError(signum)


def _end_like(signum: int) -> None:
    """End by the signal that ended the program."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own
    if signum not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})
    os.kill(os.getpid(), signum)
    signal.pause()


def main(arguments: Sequence[str]) -> int:
    """`TOLD -- COMMAND`, as `between` writes it."""
    told, argv = Round.of(arguments[0]), list(arguments[2:])
    rounds = Rounds(told, argv, os.environ)
    try:
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, _raise)
        plug = attach()
        rounds.run(plug, int(os.environ.get("PLUGML_GEN", "1")) > 1)
        plug.bye()
    except _SignalledError as error:
        rounds.leave()
        _end_like(error.signum)
    except (PlugmlError, ChannelError) as error:
        print(f"plugml: {error}", file=sys.stderr, flush=True)
        return int(getattr(error, "exit_code", 1))
    except OSError as error:
        print(f"plugml: {error.filename or told.model.name}: {error.strerror}; nothing of the round was pushed", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
