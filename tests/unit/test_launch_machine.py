"""The life of a run as stories: each policy, each end, without a process or a clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from plugml.core.limits import SECOND, Limits
from plugml.launch import effects as e
from plugml.launch import words
from plugml.launch.machine import DONE, RunMachine
from plugml.launch.plan import make_plan

LIMITS = Limits()


class Theatre:
    """Plays agent, files and programs for one machine.  Programs run until a test says how they end."""

    def __init__(self, **flags: Any) -> None:
        flags = {"tables": ["w=4"], "argv": ["./t", "{worker}"], "workers": 3, **flags}
        self.now_us = 1_000
        self.machine = RunMachine(make_plan({}, "job.toml", flags, "/dir"), "here", "/dir/logs", "/rescue", LIMITS, self.now_us)
        self.gens: dict[int, int] = {}
        self.running: dict[int, int] = {}  # worker -> gen
        self.pushes: dict[int, int] = {}  # of the generation that runs
        self.clocks: dict[int, int] = {}
        self.log: list[str] = []
        self.texts: list[str] = []
        self.signals: list[tuple[int, int]] = []
        self.finish: e.Finish | None = None
        self.answering = True
        self.taken: set[str] = set()
        self.errors: dict[str, tuple[str, str]] = {}  # op -> code, text
        self.silent: set[str] = set()  # ops that get no answer
        self.save_problem = ""
        self.asked: list[e.Ask] = []
        self.spoke: set[int] = set()
        self.state = "S"
        self.told: list[tuple[str, str]] = []  # with their levels
        self.copies = 1  # of the job, as the cluster has it
        self.unplugged: set[int] = set()
        self.saving = ""  # why a save fails
        self.full = True  # the rescue place, too
        self.dies_of_sigterm = True

    # -- acting

    def tell(self, event: Any) -> None:
        effects = self.machine.on_message("", event, self.now_us)
        self.machine.check()
        self.perform(effects)

    def wait(self, seconds: float) -> None:
        end_us = self.now_us + int(seconds * SECOND)
        while self.finish is None:
            due_us = self.machine.deadline_us()
            if due_us is None or due_us > end_us:
                break
            self.now_us = max(self.now_us, due_us)
            effects = self.machine.on_time(self.now_us)
            assert (self.machine.deadline_us() or end_us + 1) > self.now_us, "time stands still"
            self.machine.check()
            self.perform(effects)
        self.now_us = end_us

    def start(self) -> Theatre:
        self.tell(e.AgentUp("c", "a0.1"))
        return self

    def train(self, clocks: int, *workers: int) -> None:
        for worker in workers or tuple(self.running):
            self.pushes[worker] = self.pushes.get(worker, 0) + clocks
            self.clocks[worker] = self.clocks.get(worker, 0) + clocks

    def exit(self, worker: int, status: int, *tail: str) -> None:
        self.tell(e.Exited(worker, self.running.pop(worker), status, tail))

    # -- the world

    def perform(self, effects: list[Any]) -> None:
        for effect in effects:
            name = type(effect).__name__
            if name not in ("Ask", "Tell", "Show", "Look"):
                self.log.append(f"{name}({getattr(effect, 'worker', '')})")
            getattr(self, f"do_{name}")(effect)

    def do_Ask(self, ask: e.Ask) -> None:
        self.log.append(f"{ask.op}({ask.fields.get('worker', '')}{',' + ask.fields['how'] if 'how' in ask.fields else ''})")
        self.asked.append(ask)
        if self.answering and ask.op not in self.silent:
            self.answer(ask)

    def answer(self, ask: e.Ask) -> None:
        code, text = self.errors.get(ask.op, ("", ""))
        fields: dict[str, Any] = {}
        worker = ask.fields.get("worker", -1)
        if ask.op == "register":
            fields = {"job": 7, "spec": {**ask.fields["spec"], "copies": self.copies}}
            if ask.fields["spec"]["name"] in self.taken:
                code, text = "COLLIDE", "that name is taken"
        if ask.op == "attach":
            self.gens[worker] = self.gens.get(worker, 0) + 1
            fields = {"gen": self.gens[worker], "clock": self.clocks.get(worker, 0), "info": "version=1\n", "sizes": {}}
        if ask.op == "exited":
            fields = {"clocks": self.clocks.get(worker, 0), "pushes": self.pushes.pop(worker, 0), "last_error": ""}
        if ask.op == "standing":
            fields = {"clocks": {str(k): v for k, v in self.clocks.items()}, "closed": 0, "waiting": [], "save_problem": self.save_problem}
        self.asked.remove(ask)
        self.tell(e.Answer(ask.number, code, text, fields))

    def do_MakeChannel(self, effect: e.MakeChannel) -> None:
        self.tell(e.ChannelMade(effect.worker, effect.gen, f"/shm/t.{effect.worker}.{effect.gen}"))

    def do_Spawn(self, effect: e.Spawn) -> None:
        self.running[effect.worker] = effect.gen
        self.tell(e.Spawned(effect.worker, effect.gen, 100 + effect.worker))

    def do_Signal(self, effect: e.Signal) -> None:
        self.signals.append((effect.worker, effect.signum))
        if effect.worker in self.running and (self.dies_of_sigterm or effect.signum == 9):
            self.exit(effect.worker, -effect.signum)

    def do_Look(self, effect: e.Look) -> None:
        self.tell(e.Looked(effect.worker, effect.gen, effect.worker not in self.unplugged, effect.worker in self.spoke, self.state))

    def do_PrepareResult(self, effect: e.PrepareResult) -> None:
        if self.saving and (effect.directory != "/rescue" or self.full):
            self.tell(e.ResultFailed(effect.directory, self.saving))
        else:
            self.tell(e.ResultReady(effect.directory, effect.directory + "/.saving"))

    def do_PublishResult(self, effect: e.PublishResult) -> None:
        self.tell(e.ResultSaved(effect.directory, ("w.bin",)))

    def do_Tell(self, effect: e.Tell) -> None:
        self.texts.append(effect.text)
        self.told.append((effect.level, effect.text))

    def do_Finish(self, effect: e.Finish) -> None:
        assert self.finish is None
        self.finish = effect

    def nothing(self, effect: Any) -> None: ...

    do_DropChannel = do_DeclareGone = do_Show = do_DiscardResult = nothing

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    @property
    def summary(self) -> dict[str, Any]:
        assert self.finish is not None, self.log
        return self.finish.summary


def ends(theatre: Theatre, exit_code: int, state: str) -> dict[str, Any]:
    summary = theatre.summary
    assert (summary["exit_code"], summary["state"]) == (exit_code, state), summary
    assert theatre.machine.phase == DONE and theatre.machine.deadline_us() is None
    return summary


def test_a_run_from_hello_to_the_saved_result() -> None:
    t = Theatre(workers=1).start()
    assert t.log == ["register()", "attach(0)", "MakeChannel(0)", "opened(0)", "Spawn(0)"]
    t.log.clear()
    t.train(10)
    t.exit(0, 0)
    assert t.log == ["exited(0,finished)", "DropChannel(0)", "PrepareResult()", "export()", "PublishResult()", "end()", "Finish()"]
    summary = ends(t, 0, "finished")
    assert summary["result"] == "/dir/plugml-runs/t" and summary["files"] == ["w.bin"]
    assert summary["workers"][0] == {
        "worker": 0, "outcome": "finished", "clocks": 10, "pushes": 10, "restarts": 0, "generation": 1, "status": 0, "last_error": "",
    }  # fmt: skip


def test_a_short_worker_does_not_pass_for_a_full_one() -> None:
    t = Theatre().start()
    t.train(3)
    t.exit(1, 0)
    t.train(7)
    t.exit(0, 0)
    t.exit(2, 0)
    assert ends(t, 0, "finished")["uneven"] == "worker 1: 3 clocks, others 10"


def test_exit_0_without_a_push_is_a_warning_that_names_the_worker() -> None:
    t = Theatre(workers=2).start()
    t.train(5, 0)
    t.exit(1, 0)
    t.exit(0, 0)
    assert "worker 1 ended with exit code 0 but never pushed" in ends(t, 0, "finished")["warnings"][0]


def test_a_worker_that_never_pushed_is_told_what_it_did() -> None:
    t = Theatre(workers=3).start()
    t.train(5, 0)
    t.clocks[1] = 5
    t.spoke.add(2)
    t.wait(2)
    for worker in range(3):
        t.exit(worker, 0)
    warnings = ends(t, 0, "finished")["warnings"]
    assert "worker 1 ended with exit code 0 but never pushed: it finished 5 clocks and gave nothing to them" in warnings
    assert "worker 2 ended with exit code 0 but never pushed: it used its channel, but only to ask or to pull" in warnings


def test_counts_are_written_in_the_singular_and_the_plural() -> None:
    assert [words.count(number, thing) for thing in ("push", "clock") for number in (1, 2)] == ["1 push", "2 pushes", "1 clock", "2 clocks"]


def test_nothing_pushed_is_nothing_saved() -> None:
    t = Theatre(workers=1).start()
    t.exit(0, 0)
    assert ends(t, 0, "finished")["result"] == "" and "export()" not in t.log


def test_a_program_that_fails_by_itself_is_not_retried() -> None:
    t = Theatre().start()
    t.train(4)
    t.exit(1, 3, "Traceback", "ValueError: bad row")
    summary = ends(t, 3, "failed")
    assert summary["exit_of"] == "worker 1"
    for word in ("worker 1 on here failed: exit code 3, generation 1, at clock 4", "./t 1", "ValueError: bad row", "/dir/logs/w1.log", "try:"):
        assert word in t.text
    assert t.signals == [(0, 15), (2, 15)] and "attach(1)" not in t.log[12:]
    assert "exited(1,restarting)" in t.log, "it stays a member: the others must not train on without it"
    assert summary["result"] == "/dir/plugml-runs/t/failed", "it covers no earlier result"
    assert [w["outcome"] for w in summary["workers"]] == ["stopped", "failed", "stopped"]


def test_death_by_signal_before_the_first_push_is_not_retried() -> None:
    t = Theatre().start()
    t.exit(0, -11)
    assert ends(t, 139, "failed")["result"] == ""
    assert "killed by SIGSEGV" in t.text


def test_a_kill_before_the_first_push_says_nothing_of_the_program() -> None:
    t = Theatre(workers=1).start()
    t.exit(0, -9)
    assert "worker 0 was killed by SIGKILL before its first push; restarting it" in t.text and t.running == {0: 2}


def test_death_by_signal_is_retried_as_a_new_generation_at_its_clock() -> None:
    t = Theatre().start()
    t.train(4)
    t.exit(2, -9)
    assert t.running == {0: 1, 1: 1, 2: 2} and t.machine.crew.workers[2].start_clock == 4
    assert "worker 2 was killed by SIGKILL at clock 4; restarting it (1 of 3 restarts)" in t.text
    for worker in (0, 1, 2):
        t.train(6, worker)
        t.exit(worker, 0)
    summary = ends(t, 0, "finished")
    assert summary["workers"][2]["restarts"] == 1 and summary["workers"][2]["pushes"] == 10 and summary["uneven"] == ""


def lose_worker_1(policy: str) -> Theatre:
    t = Theatre(on_worker_loss=policy, max_restarts=2).start()
    t.train(4)
    for _ in range(3):
        t.exit(1, -11)
    return t


def test_on_worker_loss_stop() -> None:
    t = lose_worker_1("stop")
    ends(t, 139, "failed")
    assert t.log.count("attach(1)") == 3, "the first start and two restarts"


def test_on_worker_loss_shrink() -> None:
    t = lose_worker_1("shrink")
    assert t.log[-2:] == ["exited(1,lost)", "DropChannel(1)"] and "going on without it (shrink)" in t.text
    t.train(6, 0, 2)
    t.exit(0, 0)
    t.exit(2, 0)
    summary = ends(t, 0, "finished")
    assert summary["workers"][1]["outcome"] == "lost" and summary["workers"][1]["pushes"] == 4
    assert summary["uneven"] == "worker 1: 4 clocks, others 10" and summary["warnings"]


def test_on_worker_loss_wait() -> None:
    t = lose_worker_1("wait")
    assert t.finish is None and "the others wait for it" in t.text
    t.tell(e.Signalled(2))
    assert ends(t, 130, "stopped")["result"] == "/dir/plugml-runs/t"


def test_waiting_for_a_lost_worker_ends_when_nobody_else_is_at_work() -> None:
    t = lose_worker_1("wait")
    t.exit(0, 0)
    t.exit(2, 0)
    ends(t, 139, "failed")


def test_ok_exit_counts_as_finished() -> None:
    t = Theatre(workers=1, ok_exit=[0, 7]).start()
    t.train(1)
    t.exit(0, 7)
    assert ends(t, 0, "finished")["workers"][0]["status"] == 7


def test_ctrl_c_stops_saves_and_ends_with_130() -> None:
    t = Theatre().start()
    t.train(4)
    t.tell(e.Signalled(2))
    assert ends(t, 130, "stopped")["result"] == "/dir/plugml-runs/t"
    assert t.signals == [(0, 15), (1, 15), (2, 15)]
    assert t.log.index("export()") < t.log.index("end()")


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    t = Theatre(workers=1, grace=5).start()
    t.train(4)
    t.dies_of_sigterm = False
    t.tell(e.Signalled(15))
    t.wait(4)
    assert t.finish is None
    t.wait(2)
    assert ends(t, 143, "stopped")["result"] and t.signals == [(0, 15), (0, 9)]
    assert "did not end within 5 s: SIGKILL" in t.text


def test_the_second_ctrl_c_ends_at_once() -> None:
    t = Theatre(workers=2).start()
    t.train(4)
    t.dies_of_sigterm = False
    t.tell(e.Signalled(2))
    t.tell(e.Signalled(2))
    assert ends(t, 130, "stopped")["result"] == "" and (1, 9) in t.signals


def test_ctrl_c_after_the_last_worker_changes_nothing_and_a_second_one_tells_what_is_saved() -> None:
    for op, says in (("export", "ended at once, nothing saved"), ("end", "ended at once")):
        t = Theatre(workers=1)
        t.silent.add(op)
        t.start()
        t.train(1)
        t.exit(0, 0)
        t.tell(e.Signalled(2))
        assert t.finish is None and "all workers have ended already" in t.texts[-1]
        t.tell(e.Signalled(2))
        assert t.texts[-1].endswith(says)
        assert bool(ends(t, 130, "stopped")["result"]) == (op == "end")
        assert t.log.count("DiscardResult()") == (op == "export"), "nothing half written stays"


def test_a_second_ctrl_c_while_files_are_written_does_not_say_that_nothing_is_saved() -> None:
    t = Theatre(workers=1)
    t.do_PublishResult = lambda effect: None  # type: ignore[method-assign]
    t.start()
    t.train(1)
    t.exit(0, 0)
    for _ in (1, 2):
        t.tell(e.Signalled(2))
    assert t.texts[-1].endswith("ended at once, when the result that is just being written is whole")
    ends(t, 130, "stopped")


def test_pushes_that_nobody_has_told_are_not_none() -> None:
    """Two of three workers were counted before the cluster went down."""
    t = Theatre().start()
    t.train(4)
    t.exit(1, 0)
    t.answering = False
    t.tell(e.AgentDown("closed"))
    t.exit(2, 0)
    t.tell(e.ClusterDown("cluster lab was taken down"))
    summary = ends(t, 75, "failed")
    assert [worker["pushes"] for worker in summary["workers"]] == [None, 4, None]
    assert "pushes not known: the agent was not there to count them" in words.closing_lines(summary)[0]


def test_a_rescued_result_says_so_in_its_own_document() -> None:
    t = Theatre(workers=1)
    t.saving, t.full = "No space left on device", False
    documents: list[dict[str, Any]] = []
    publish = t.do_PublishResult
    t.do_PublishResult = lambda effect: (documents.append(effect.document), publish(effect))[1]  # type: ignore[method-assign]
    t.start()
    t.train(1)
    t.exit(0, 0)
    (document,) = documents
    why = "the result could not be saved in /dir/plugml-runs/t: No space left on device"
    assert (document["state"], document["exit_code"], document["reason"], document["rescued"]) == ("failed", 1, why, why)
    assert ends(t, 1, "failed")["result"] == "/rescue"


def test_ctrl_c_before_anything_runs() -> None:
    t = Theatre()
    t.tell(e.Signalled(2))
    ends(t, 130, "stopped")
    t = Theatre()
    t.silent.add("register")
    t.start()
    t.tell(e.Signalled(2))
    assert t.finish is None, "the job may be registered a moment later, and must be ended then"
    t.answer(t.asked[0])
    ends(t, 130, "stopped")
    assert t.log[-2:] == ["end()", "Finish()"]


def test_ctrl_c_without_a_master_does_not_wait_for_ever() -> None:
    t = Theatre()
    t.silent.add("register")
    t.start()
    t.tell(e.Signalled(2))
    t.wait(11)
    ends(t, 130, "stopped")


def test_an_agent_that_comes_back_is_waited_for() -> None:
    t = Theatre(workers=1).start()
    t.train(4)
    t.answering = False
    t.tell(e.AgentDown("closed"))
    t.exit(0, 0)
    t.wait(20)
    assert t.finish is None and "waiting for the agent" in t.text
    t.answering = True
    t.tell(e.AgentUp("c", "a0.2"))
    t.answer(t.asked[0])  # the link repeats what was not answered
    assert ends(t, 0, "finished")["result"]


def test_an_agent_gone_for_good_is_told_to_the_programs() -> None:
    t = Theatre(workers=2).start()
    t.train(4)
    t.answering = False
    t.tell(e.AgentDown("closed"))
    t.wait(31)
    ends(t, 75, "failed")
    assert t.log.index("DeclareGone(1)") < t.log.index("Signal(0)") and t.log.count("DropChannel(0)") == 1
    assert "code=GONE" in t.text


def test_a_cluster_that_was_taken_down_is_not_waited_for() -> None:
    t = Theatre(workers=2).start()
    t.train(4)
    t.tell(e.ClusterDown("cluster lab was taken down"))
    assert t.finish is None, "its agent is still there"
    t.answering = False
    t.tell(e.AgentDown("closed"))
    t.tell(e.ClusterDown("cluster lab was taken down"))
    assert "cluster lab was taken down: code=GONE to the programs" in ends(t, 75, "failed")["reason"]
    assert "DeclareGone(1)" in t.log


def test_an_agent_that_never_comes() -> None:
    t = Theatre()
    t.tell(e.AgentDown("no such file"))
    t.wait(110)
    assert t.finish is None and "waiting for the agent" in t.text
    t.wait(11)
    ends(t, 69, "failed")


def test_an_agent_lost_while_saving() -> None:
    t = Theatre(workers=1)
    t.silent.add("export")
    t.start()
    t.train(4)
    t.exit(0, 0)
    t.tell(e.AgentDown("closed"))
    t.wait(31)
    summary = ends(t, 1, "failed")
    assert "could not be saved" in summary["reason"]


def test_a_lost_job_is_a_named_error() -> None:
    t = Theatre().start()
    t.train(4)
    t.tell(e.AgentNews({"event": "job", "job": "t", "state": "lost", "reason": "server s0 held the only copy of 120 ranges"}))
    ends(t, 1, "lost")
    assert "server s0 held the only copy" in t.text and "export()" not in t.log


def test_a_lost_job_explains_a_program_that_failed_of_it_just_before() -> None:
    t = Theatre()
    t.dies_of_sigterm = False
    t.start()
    t.train(4)
    t.exit(1, 1, "plugml: NOSERVER")
    t.tell(e.AgentNews({"event": "job", "job": "t", "state": "lost", "reason": "server s0 died"}))
    for worker in (0, 2):
        t.exit(worker, -15)
    assert "server s0 died" in ends(t, 1, "lost")["reason"]


def test_of_a_job_that_cannot_go_on_the_values_are_saved_before_it_is_ended() -> None:
    t = Theatre().start()
    t.train(4)
    t.tell(e.AgentNews({"event": "failing", "job": "other", "run": 7, "text": "not ours"}))
    assert not t.machine.verdict
    t.tell(e.AgentNews({"event": "failing", "job": "t", "run": 7, "text": "clock 4 cannot be closed"}))
    summary = ends(t, 1, "failed")
    assert "clock 4 cannot be closed" in summary["reason"] and summary["result"].endswith("/failed")


def test_a_job_stopped_from_outside() -> None:
    t = Theatre().start()
    t.train(4)
    t.tell(e.AgentNews({"event": "job", "job": "other", "state": "stopped", "reason": ""}))
    t.tell(e.AgentNews({"event": "job", "job": "t", "run": 6, "state": "stopped", "reason": "the run before ours"}))
    assert not t.machine.verdict
    t.tell(e.AgentNews({"event": "job", "job": "t", "run": 7, "state": "stopped", "reason": "plugml stop"}))
    assert "plugml stop" in ends(t, 143, "stopped")["reason"]
    assert "nothing is saved: nobody has the values any more" in t.text and "export()" not in t.log


def test_a_default_name_gets_a_suffix_where_it_is_taken() -> None:
    t = Theatre(workers=1)
    t.taken |= {"t", "t-2"}
    t.start()
    assert t.machine.plan.spec.name == "t-3" and t.running


@pytest.mark.parametrize(("copies", "level"), [(1, "detail"), (2, "info")])
def test_what_may_happen_to_servers_is_said_as_the_cluster_has_it(copies: int, level: str) -> None:
    t = Theatre()
    t.copies = copies
    t.start()
    assert [told for told, text in t.told if "of each range" in text] == [level]


def test_a_given_name_that_is_taken_is_an_error() -> None:
    t = Theatre(name="mine")
    t.taken.add("mine")
    t.start()
    ends(t, 2, "failed")
    assert "job 'mine' cannot be registered: that name is taken" in t.text


@pytest.mark.parametrize(("op", "exit_code"), [("attach", 1), ("opened", 1)])
def test_refusals_end_the_run(op: str, exit_code: int) -> None:
    t = Theatre(workers=2)
    t.errors[op] = ("PERM", "not yours")
    t.start()
    ends(t, exit_code, "failed")
    assert "PERM: not yours" in t.text and not t.running


def test_a_full_root_ends_with_73(monkeypatch: pytest.MonkeyPatch) -> None:
    t = Theatre(workers=3)
    made: Callable[[Any], None] = t.do_MakeChannel

    def full(effect: e.MakeChannel) -> None:
        if effect.worker == 1:
            t.tell(e.ChannelFailed(1, effect.gen, "the channel root is full", 73))
        else:
            made(effect)

    monkeypatch.setattr(t, "do_MakeChannel", full)
    t.start()
    ends(t, 73, "failed")
    assert not t.running


def test_a_program_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    t = Theatre(workers=1)
    monkeypatch.setattr(t, "do_Spawn", lambda effect: t.tell(e.SpawnFailed(0, effect.gen, "./t: not found", 127)))
    t.start()
    ends(t, 127, "failed")
    assert "exited(0,restarting)" in t.log and "DropChannel(0)" in t.log


def test_a_failed_save_fails_the_run() -> None:
    t = Theatre(workers=1).start()
    t.train(1)
    t.saving = "No space left on device"
    t.exit(0, 0)
    ends(t, 1, "failed")
    assert "could not be saved in /dir/plugml-runs/t: No space left on device" in t.text

    t = Theatre(workers=1)
    t.errors["export"] = ("NOSPC", "full")
    t.start()
    t.train(1)
    t.tell(e.Signalled(2))
    ends(t, 130, "stopped")
    assert "NOSPC: full" in t.text


def test_a_result_whose_place_is_full_is_saved_elsewhere_and_the_run_fails_all_the_same() -> None:
    t = Theatre(workers=1).start()
    t.train(1)
    t.saving, t.full = "No space left on device", False
    t.exit(0, 0)
    assert ends(t, 1, "failed")["result"] == "/rescue"
    assert "saving it in /rescue instead" in t.text


def test_a_worker_that_never_says_hello_is_named() -> None:
    t = Theatre(workers=2).start()
    t.spoke.add(0)
    t.train(1, 0)
    t.wait(2)
    t.texts.clear()
    t.wait(12)
    assert "clock 0: waiting for worker 1, which has not said hello" in t.text
    assert "plugml channel --close t.1" in t.text and "worker 0" not in t.text
    assert len(t.texts) == 1
    t.state = "T"
    t.wait(60)
    assert "which is stopped by a signal (kill -CONT 101" in t.text
    assert len(t.texts) <= 3, "the same wait is not told again and again"


def test_a_worker_unplugged_from_outside_holds_nobody_up() -> None:
    t = Theatre(workers=3).start()
    t.train(3)
    t.unplugged.add(1)
    t.wait(2)
    assert "worker 1 was unplugged from outside" in t.text
    t.train(3, 0, 2)
    t.exit(0, 0)
    assert t.signals == []
    t.exit(2, 0)
    assert t.signals == [(1, 15)], "its program is not left behind"
    summary = ends(t, 0, "finished")
    assert [worker["outcome"] for worker in summary["workers"]] == ["finished", "unplugged", "finished"] and summary["result"]
    assert summary["workers"][1]["pushes"] == 3


def test_a_run_whose_channels_all_vanish_is_no_success() -> None:
    t = Theatre(workers=2).start()
    t.train(3)
    t.unplugged |= {0, 1}
    t.wait(2)
    assert sorted(t.signals) == [(0, 15), (1, 15)]
    summary = ends(t, 1, "failed")
    assert "every worker was unplugged" in summary["reason"]
    assert "PrepareResult()" in t.log, "what was trained is kept, apart from good results"


def test_a_program_that_fails_for_want_of_its_channel_fails_the_run() -> None:
    t = Theatre(workers=2).start()
    t.train(3)
    t.unplugged.add(1)
    t.wait(2)
    t.exit(1, 7, "plugml: GONE")
    assert "worker 1" in ends(t, 7, "failed")["reason"]


def test_what_the_agent_waits_for_is_passed_on_once() -> None:
    t = Theatre(workers=2).start()
    for worker in (0, 1):
        t.tell(e.AgentNews({"event": "waiting", "job": "t", "worker": worker, "text": "clock 3: waiting for server s1, 4 ranges unanswered"}))
        t.tell(e.AgentNews({"event": "waiting", "job": "t", "worker": worker, "text": "clock 3: waiting for worker 1, last seen 12 s ago"}))
    assert t.text.count("waiting for server s1") == 1 and "waiting for worker" not in t.text


def test_waits_for_a_master_explain_themselves() -> None:
    t = Theatre()
    t.silent.add("register")
    t.start()
    t.wait(11)
    assert "waiting for a master to register the job since 10 s" in t.text


def test_slow_clocks_are_no_stall() -> None:
    t = Theatre(workers=1).start()
    t.spoke.add(0)
    for _ in range(5):
        t.train(1)
        t.wait(14)
    early = [text for text in t.texts if "waiting" in text]
    t.texts.clear()
    for _ in range(5):
        t.train(1)
        t.wait(14)
    assert early and not t.texts


def test_a_checkpoint_that_could_not_be_made_is_told_until_one_is() -> None:
    t = Theatre().start()
    t.train(3)
    for problem in ("6: No space left", "7: No space left", "", "9: No space left"):
        t.save_problem = problem
        t.wait(3)
    told = [text for text in t.texts if "a checkpoint could not be made" in text]
    assert [text.partition("made: ")[2][:16] for text in told] == ["6: No space left", "9: No space left"]


def test_an_agent_that_is_there_but_does_not_answer_is_what_is_waited_for() -> None:
    t = Theatre().start()
    t.train(3)
    t.silent.add("standing")
    t.wait(25)
    assert "waiting for the agent, which is there but does not answer since" in t.text and "waiting for worker" not in t.text
