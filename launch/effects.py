"""What the launcher's machine asks of its shell, and what it is told.  Values only; nothing here acts.

Effects go out, events come in; `number` ties an answer to its question.  A worker is named by (worker, gen), so that
news of an earlier generation is recognised and dropped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# -- effects ----------------------------------------------------------------------------------------------------------


class Ask(NamedTuple):
    """Ask the agent.  The link repeats it after a lost connection until an `Answer` with this number comes."""

    number: int
    op: str
    fields: dict[str, Any]


class MakeChannel(NamedTuple):
    """Make the channel's directory and keep it: keeper locked, both FIFOs open.  -> ChannelMade | ChannelFailed"""

    worker: int
    gen: int
    info: str  # the text of the file


class DropChannel(NamedTuple):
    """The agent has closed the channel, or never will: let go of keeper and FIFOs and sweep what is left."""

    worker: int
    gen: int


class DeclareGone(NamedTuple):
    """The agent is gone for good: move the directory out of its reach and answer `code=GONE` to the program."""

    worker: int
    gen: int


class Spawn(NamedTuple):
    """Start the worker's program, plugged into its channel.  -> Spawned | SpawnFailed, later Exited"""

    worker: int
    gen: int


class Signal(NamedTuple):
    """Send a signal to the worker's whole process group."""

    worker: int
    gen: int
    signum: int


class Look(NamedTuple):
    """How is this worker?  -> Looked"""

    worker: int
    gen: int


class PrepareResult(NamedTuple):
    """Make an empty directory beside the place where the result will be.  -> ResultReady | ResultFailed"""

    directory: str


class PublishResult(NamedTuple):
    """Finish the files in `scratch` and move each to its final name, `result.json` last.  -> ResultSaved | ResultFailed"""

    scratch: str
    directory: str
    document: dict[str, Any]


class DiscardResult(NamedTuple):
    """Nothing will come of the files in `scratch`: remove them."""

    scratch: str


class PrepareModel(NamedTuple):
    """Make an empty directory for the tables of one evaluation.  -> ModelReady | ModelFailed"""


class Evaluate(NamedTuple):
    """Complete the tables in `directory` and run the evaluation's command on them.  -> Evaluated"""

    directory: str
    clock: int


class EndEvaluation(NamedTuple):
    """Nobody waits for the evaluation that runs: end it."""


class KeepBest(NamedTuple):
    """Keep the tables in `directory` as the best ones, in the formats of the result.  -> BestKept"""

    directory: str
    document: dict[str, Any]


class DropModel(NamedTuple):
    """The tables of an evaluation are not needed any more."""

    directory: str


class Tell(NamedTuple):
    """A sentence for the user.  level: info | warn | error | detail (detail only with -v)."""

    level: str
    text: str


class Show(NamedTuple):
    """How the training stands, for the progress display."""

    picture: Picture


class Finish(NamedTuple):
    """The run is over: nothing is to be done any more."""

    exit_code: int
    summary: dict[str, Any]


class Picture(NamedTuple):
    """One look at the job: clocks finished by each worker, the closed clock (BSP), how many members take part.

    `metric` is the last evaluation in words; `goal` the clock at which all workers end, `end_us` the time, 0 = unknown.
    """

    clocks: dict[int, int]
    closed: int
    restarts: int
    running: int
    metric: str = ""
    goal: int = 0
    end_us: int = 0


# -- events -----------------------------------------------------------------------------------------------------------


class AgentUp(NamedTuple):
    """Connected, and the agent said hello."""

    cluster: str
    node: str


class AgentDown(NamedTuple):
    """The connection broke, or could not be made; the link goes on trying."""

    text: str


class ClusterDown(NamedTuple):
    """The standing cluster that the run had joined is no more: its agent, which is away, will not come back."""

    text: str


class Answer(NamedTuple):
    """The agent's answer to `Ask` number; `code` is empty when it went well, else a word of core.errors.Code."""

    number: int
    code: str
    text: str
    fields: dict[str, Any]


class AgentNews(NamedTuple):
    """Something that the agent says unasked: {"event": ...}."""

    document: dict[str, Any]


class ChannelMade(NamedTuple):
    worker: int
    gen: int
    directory: str


class ChannelFailed(NamedTuple):
    """The channel could not be made (no space, wrong owner); `exit_code` is what the run should end with."""

    worker: int
    gen: int
    text: str
    exit_code: int


class Spawned(NamedTuple):
    worker: int
    gen: int
    pid: int


class SpawnFailed(NamedTuple):
    worker: int
    gen: int
    text: str
    exit_code: int  # 127 not found, 126 not executable


class Exited(NamedTuple):
    """The program has ended and its output is read to the end.  `status` is its exit code, or minus the signal."""

    worker: int
    gen: int
    status: int
    tail: tuple[str, ...]  # last readable lines of stderr (else of stdout)


class Looked(NamedTuple):
    """`there`: its channel is.  `spoke`: it has ever written a request.  `state`: the kernel's letter (T = stopped)."""

    worker: int
    gen: int
    there: bool
    spoke: bool
    state: str


class ModelReady(NamedTuple):
    directory: str


class ModelFailed(NamedTuple):
    text: str


class Evaluated(NamedTuple):
    """An evaluation is over: the number that it gave, or why there is none, with its last lines."""

    directory: str
    clock: int
    value: float | None
    text: str
    tail: tuple[str, ...]


class BestKept(NamedTuple):
    """`text` says why it could not be kept, "" = it is, in `directory`."""

    directory: str
    text: str


class ResultReady(NamedTuple):
    directory: str
    scratch: str


class ResultSaved(NamedTuple):
    directory: str
    files: tuple[str, ...]
    warnings: tuple[str, ...] = ()


class ResultFailed(NamedTuple):
    directory: str
    text: str


class Signalled(NamedTuple):
    """The launcher itself received this signal."""

    signum: int


class ClusterNews(NamedTuple):
    """The private cluster's supervisor speaks: `fatal` means that the cluster cannot go on."""

    text: str
    fatal: bool
