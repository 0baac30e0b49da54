"""`plugml drain`, `plugml scale` and what `plugml status` shows of copies: the orders that are given, and the words for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plugml.cli import servers
from plugml.cli.main import main
from plugml.cli.status import job_text, status_text
from plugml.core.errors import Code, RequestError
from plugml.launch.discovery import ClusterFile
from plugml.wire import messages as m
from tests.fuzz.master_world import LIMITS, MasterWorld, spec

S = [f"s{number}.0000000{number + 1}" for number in range(4)]
A0 = "a0.0000000f"


class World(MasterWorld):
    """A real master, asked as the command line asks; while somebody watches, learners get in sync."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.cancels_at = 0  # look at which somebody else cancels the drain

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        self.asked.append(verb + (" look" if arguments.get("look") else ""))
        told = self.admin(verb, **arguments)
        if told.code != Code.OK:
            raise RequestError(Code(told.code), told.text)
        if len(self.asked) == self.cancels_at:
            self.admin("drain", server=arguments["server"], cancel=True)
        for _ in range(5):
            self.fill()
        return told.document

    def fill(self) -> None:
        for number, seat in self.state.jobs[1].seats.items():
            if seat.learner:
                self.feed(seat.replicas[0], m.SeatAsk(self.number(), 1, number, seat.epoch, "add", seat.learner, ""))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    for number in range(3):
        made.register(S[number], host=f"h{number}")
    made.register(A0)
    made.job(A0, spec(copies=2))
    monkeypatch.setattr(servers, "_asker", lambda cluster: made)
    monkeypatch.setattr(servers, "EVERY_S", 0.0)
    return made


def test_a_drain_is_watched_to_its_end(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drain", "s1"]) == 0
    out, err = capsys.readouterr()
    assert out == "server s1 is drained: it holds nothing, and may be ended\n"
    assert "is being drained" in err and "Ctrl-C stops watching, not the order" in err
    assert world.asked[0] == "drain" and set(world.asked[1:]) == {"drain look"}
    assert main(["drain", "s1", "--cancel"]) == 0
    assert capsys.readouterr().out == "server s1 takes part\n" and world.state.drained == ()


def test_a_drain_that_somebody_cancels_is_not_told_as_done(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.cancels_at = 1
    assert main(["drain", "s1"]) == 1
    assert "the drain of server s1 was cancelled" in capsys.readouterr().err


def test_an_order_alone(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drain", "s1", "--no-wait", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["state"] == "draining" and document["ranges"] and world.asked == ["drain"]


def test_what_cannot_be_is_said(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drain", "s9"]) == 1
    assert "there is no server 's9'; known are s0, s1, s2" in capsys.readouterr().err
    assert main(["drain", "s1", "--gone"]) == 1
    assert "server s1 is alive" in capsys.readouterr().err
    assert main(["drain", "s1", "--gone", "--cancel"]) == 2


def test_a_server_that_is_gone_is_buried(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.beats_for(2 * LIMITS.dead_us, *S[:3], A0)
    world.beats_for(2 * LIMITS.dead_us, S[0], A0)
    assert main(["drain", "s1", "--gone"]) == 0
    assert capsys.readouterr().out == f"server {S[1]} counts as dead\n"
    assert "s1" not in world.state.nodes


def test_scale_fills_a_newcomer(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale"]) == 0
    assert capsys.readouterr().out == "nothing is to move: every server has its share\n"
    world.register(S[3], host="h3")
    assert main(["scale"]) == 0
    out, err = capsys.readouterr()
    assert out == "nothing is to move: every server has its share\n" and "of 1 job are to move" in err
    assert S[3] in world.state.jobs[1].servers()


# -- what is shown


def shown(world: World) -> str:
    file = ClusterFile("test", Path("/r"), Path("/s"), {"m0": "ipc:///r/m0"}, 1, "up")
    return status_text(world.admin("status").document, file)


def rows(text: str, first: str) -> dict[str, list[str]]:
    lines = text.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(first))
    return {line.split()[0]: line.split() for line in lines[start + 1 :] if line.strip()}


def test_status_says_who_leads_and_backs_what_and_what_is_missing(world: World) -> None:
    text = shown(world)
    assert "!" not in text and ": 2 copies of each range: any one server may die\n" in text + "\n"
    nodes = rows(text, "NODE")
    seats = world.state.jobs[1].seats
    for name in S[:3]:
        leads, backs = (sum(name in seat.replicas[at : at + 1] for seat in seats.values()) for at in (0, 1))
        assert nodes[name][-2:] == [str(leads), str(backs)]

    world.feed("x.1", m.NodeExit(1, S[0], -9))
    short = sum(len(seat.replicas) == 1 for seat in world.state.jobs[1].seats.values())
    filled = sum(bool(seat.learner) for seat in world.state.jobs[1].seats.values())
    text = shown(world)
    waiting = f", {short - filled} wait for their turn" if short > filled else ""
    assert f"! job job: {short} ranges have 1 of 2 copies; {filled} copies on the way to s1 and s2{waiting}" in text
    assert f"  job: copies missing of {short} ranges; {filled} ranges are being copied, 0 copies are to move" in text
    assert "is being filled with 2" in text


def test_status_says_why_nothing_can_be_done(world: World) -> None:
    world.feed("x.1", m.NodeExit(1, S[0], -9))
    for _ in range(20):
        world.fill()
    world.feed("x.1", m.NodeExit(2, S[1], -9))
    ranges = len(world.state.jobs[1].seats)
    assert f"! job job: {ranges} ranges have 1 of 2 copies; there is no other server for them (1 server can take copies): start more" in shown(world)
    world.admin("drain", server="s1")


def test_status_says_that_a_job_waits_for_its_copies() -> None:
    world = World()
    for number in range(2):
        world.register(S[number])
    world.register(A0)
    world.job(A0, spec(copies=2, min_insync=2))
    world.feed("x.1", m.NodeExit(1, S[0], -9))
    assert "ranges have 1 of 2 copies, and wait because min_insync = 2; there is no other server" in shown(world)


def test_status_says_what_is_drained_and_that_copies_share_a_host_without_need(world: World) -> None:
    world.admin("drain", server="s1")
    text = shown(world)
    assert "! server s1 is being drained: " in text and "drained: it gets nothing" in text
    world.feed("x.1", m.NodeExit(1, S[1], 0))
    assert "drained, and not here: s1" in shown(world)

    world = World()
    for number in range(2):
        world.register(S[number], host="h0")
    world.register(A0)
    world.job(A0, spec(copies=2))
    assert "share a host" not in shown(world)  # it cannot be helped, and the job's own line says so
    world.register(S[2], host="h2")
    ranges = len(world.state.jobs[1].seats)
    assert f"! job job: copies of {ranges} ranges share a host without need: `plugml scale` parts them" in shown(world)


def test_each_range_says_where_it_is_and_why(world: World) -> None:
    before = dict(world.state.jobs[1].seats)
    world.feed("x.1", m.NodeExit(1, S[0], -9))
    document = world.admin("job", job="job").document
    for row in document["ranges"]:
        seat = world.state.jobs[1].seats[row["range"]]
        assert (tuple(row["replicas"]), row["learner"], row["missing"]) == (seat.replicas, seat.learner, 2 - len(seat.replicas))
        promoted = before[row["range"]].replicas[0] == S[0]
        assert ("took over from a server that is gone" in row["why"]) == promoted
        assert ("1 copy missing" in row["why"]) == (len(seat.replicas) == 1)
        assert ("is being filled" in row["why"]) == bool(seat.learner)
    number = next(number for number, seat in world.state.jobs[1].seats.items() if seat.learner)
    line = rows(job_text(document), "RANGE")[str(number)]
    assert line[1:3] == [str(world.state.jobs[1].seats[number].epoch), world.state.jobs[1].seats[number].replicas[0]]


def test_who_gives_up_shrinking_a_cluster_leaves_it_as_it_was(world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C while servers are being emptied: they take part again."""

    def pause(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("plugml.launch.resize.ask", lambda cluster, count=0, taken=(): ["s0", "s1", "s2"])
    monkeypatch.setattr(world, "fill", lambda: None)
    monkeypatch.setattr(world, "cluster", None, raising=False)
    monkeypatch.setattr(servers.time, "sleep", pause)
    assert main(["scale", "2"]) == 130
    assert "Ctrl-C: they stay after all" in capsys.readouterr().err
    assert world.state.drained == () and world.asked.count("drain") == 2
