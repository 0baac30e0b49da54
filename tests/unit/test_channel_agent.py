"""The agent's side of a channel on real files: what a program may do to them, and what every store leaves behind."""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from plugml.core.errors import Code, RequestError
from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol import numbers, page
from plugml.shm_protocol.channel import AgentChannel, adopt
from plugml.shm_protocol.create import Channel, create_channel
from plugml.shm_protocol.info import Info
from plugml.shm_protocol.page import BROKEN, BUSY, CLOSED, READY
from plugml.shm_protocol.request import Request, parse_reply
from plugml.shm_protocol.root import boot_id, prepare_root, remove_tree
from tests.leaks import own_root

pytestmark = pytest.mark.usefixtures("no_leaks")
SPEC = JobSpec("job", 1, (TableSpec("w", (3, 2)),))
VALUES = np.arange(6, dtype="<f4")


@pytest.fixture
def root() -> Iterator[Path]:
    path = own_root()
    prepare_root(path)
    yield path
    path.rmdir()


@pytest.fixture
def kept(root: Path) -> Iterator[Channel]:
    with create_channel(root, Info.of(SPEC, 0, 1, boot_id(), 0)) as made:
        yield made


def adopted(kept: Channel, agent_id: int = 1) -> AgentChannel:
    root_fd = os.open(kept.root, os.O_RDONLY)
    try:
        return adopt(root_fd, kept.name, agent_id, clock_ns=lambda: 7)
    finally:
        os.close(root_fd)


@pytest.fixture
def agent(kept: Channel) -> Iterator[AgentChannel]:
    channel = adopted(kept)
    yield channel
    channel.close()


@pytest.fixture
def directory(kept: Channel) -> Path:
    return kept.directory


def read(agent: AgentChannel, exact: bool = True, text: bool = False) -> np.ndarray:
    into = numbers.aligned(agent.info.cap_grad)
    agent.read_data(Request("push", 1, 0, None if exact else agent.info.elements, text=text), into)
    return into.view(agent.info.tables[0].numpy_dtype)


def refused(action: Callable[[], object]) -> tuple[Code, str]:
    with pytest.raises(RequestError) as error:
        action()
    return error.value.code, error.value.text


# -- the request line


def test_a_fresh_channel_has_no_request(agent: AgentChannel) -> None:
    assert agent.read_cmd() is None


@pytest.mark.parametrize("line", [b"", b"step 1 0", b"step 1 0 n=6 " + b"x" * 300, b"\0\n"[:1], b"x" * 4095])
def test_without_a_newline_there_is_no_request(agent: AgentChannel, directory: Path, line: bytes) -> None:  # SPEC 4.2 7.2
    (directory / "cmd").write_bytes(line)
    assert agent.read_cmd() is None
    assert agent.counters()["empty_bells"] == 1


def test_what_follows_the_newline_is_ignored(agent: AgentChannel, directory: Path) -> None:  # SPEC 4.3
    with open(directory / "cmd", "r+b") as cmd:  # not truncated: an older, longer line lies behind
        cmd.write(b"step 10 9 n=6 w=25\n")
        cmd.seek(0)
        cmd.write(b"step 11 10\n")
    assert agent.read_cmd() == b"step 11 10"


def test_a_long_line_is_read_whole(agent: AgentChannel, directory: Path) -> None:
    line = b"step 1 0 " + b"x=1 " * 1000
    (directory / "cmd").write_bytes(line + b"\n")
    assert agent.read_cmd() == line


def test_a_line_without_end_is_handed_out_so_that_it_can_be_refused(agent: AgentChannel, directory: Path) -> None:  # SPEC 7.2
    (directory / "cmd").write_bytes(b"y" * 5000)
    line = agent.read_cmd()
    assert line is not None and len(line) == 4096


def test_a_line_that_changes_while_it_is_read_is_read_again(agent: AgentChannel, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC 7.1
    (directory / "cmd").write_bytes(b"step 1 0 n=6\n")
    real, torn = agent.files.read, [b"step 1 0 n=\n", b"step 1 0 n=6"]
    monkeypatch.setattr(agent.files, "read", lambda name, nbytes: torn.pop() if torn else real(name, nbytes))
    assert agent.read_cmd() == b"step 1 0 n=6"
    assert agent.counters()["torn_reads"] == 2


def test_a_line_that_never_rests_waits_for_its_bell(agent: AgentChannel, monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC 7.1
    numbers_ = iter(range(1000))
    monkeypatch.setattr(agent.files, "read", lambda _name, _nbytes: b"step %d 0\n" % next(numbers_))
    assert agent.read_cmd() is None


def test_a_program_may_replace_cmd_and_grad(agent: AgentChannel, directory: Path) -> None:  # SPEC 1.7
    assert agent.read_cmd() is None
    for number in (1, 2, 3):
        (directory / "new").write_bytes(b"step %d 0\n" % number)
        (directory / "new").rename(directory / "cmd")
        assert agent.read_cmd() == b"step %d 0" % number
        (directory / "new").write_bytes((VALUES * number).tobytes())
        (directory / "new").rename(directory / "grad")
        assert read(agent).tolist() == (VALUES * number).tolist()


def test_a_file_that_was_moved_away_is_not_read_any_more(agent: AgentChannel, directory: Path) -> None:
    (directory / "cmd").write_bytes(b"step 1 0\n")
    assert agent.read_cmd() == b"step 1 0"
    (directory / "cmd").rename(directory / "old")
    assert refused(agent.read_cmd) == (Code.PERM, "cmd cannot be reached: No such file or directory")
    (directory / "cmd").write_bytes(b"step 2 1\n")
    assert agent.read_cmd() == b"step 2 1"


@pytest.mark.parametrize("name", ["cmd", "grad", "param"])
def test_links_fifos_and_directories_are_refused_and_never_waited_for(agent: AgentChannel, directory: Path, tmp_path: Path, name: str) -> None:  # SPEC 7.9
    def use() -> object:
        if name == "cmd":
            return agent.read_cmd()
        agent.set_current(1)
        return read(agent) if name == "grad" else agent.write_param(0, VALUES)

    secret = tmp_path / "secret"
    secret.write_bytes(bytes(24))
    (directory / name).unlink()
    (directory / name).symlink_to(secret)
    assert refused(use) == (Code.PERM, f"{name} is a symbolic link")
    (directory / name).unlink()
    os.mkfifo(directory / name)
    code, _text = refused(use)
    assert code is Code.PERM
    (directory / name).unlink()
    (directory / name).mkdir()
    code, _text = refused(use)
    assert code is Code.PERM
    (directory / name).rmdir()
    assert secret.read_bytes() == bytes(24)


# -- the push


def test_a_push_lands_in_an_aligned_buffer(agent: AgentChannel, directory: Path) -> None:
    (directory / "grad").write_bytes(VALUES.tobytes())
    assert read(agent).tolist() == VALUES.tolist()


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (0, "grad has 0 bytes, 24 are declared (6 elements of f32); nothing was applied"),
        (23, "grad has 23 bytes, 24 are declared (6 elements of f32); nothing was applied"),
        (12, "grad has 12 bytes, 24 are declared (6 elements of f32); nothing was applied"),
        (32, "record markers of Fortran; open the file with access='stream'"),
        (40, "record markers of Fortran; open the file with access='stream'"),
        (48, "float64 instead of float32? declare the table as f64 or convert"),
        (72, "was it appended with '>>'? overwrite it"),
    ],
)
def test_a_push_of_another_size_is_refused_with_a_guess(agent: AgentChannel, directory: Path, nbytes: int, words: str) -> None:  # SPEC 3.3 12.2 12.5 12.6
    (directory / "grad").write_bytes(bytes(nbytes))
    code, text = refused(lambda: read(agent))
    assert code is Code.SIZE and words in text


def test_float32_for_float64_is_guessed(root: Path) -> None:
    spec = JobSpec("job", 1, (TableSpec("w", (6,), dtype="f64"),))
    with create_channel(root, Info.of(spec, 0, 1, boot_id(), 0)) as kept:
        agent = adopted(kept)
        (kept.directory / "grad").write_bytes(bytes(24))
        _code, text = refused(lambda: read(agent))
        assert "float32 instead of float64?" in text
        agent.close()


def test_with_n_the_file_may_be_longer_but_not_shorter(agent: AgentChannel, directory: Path) -> None:  # SPEC 3.4
    (directory / "grad").write_bytes(VALUES.tobytes() + b"more")
    assert read(agent, exact=False).tolist() == VALUES.tolist()
    (directory / "grad").write_bytes(VALUES.tobytes()[:-1])
    code, _text = refused(lambda: read(agent, exact=False))
    assert code is Code.SIZE


def test_a_file_that_shrinks_while_it_is_read_is_refused(agent: AgentChannel, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = agent.files.read_into

    def shrink(name: str, buffer: object, offset: int = 0) -> int:
        os.truncate(directory / name, 10)
        return real(name, buffer, offset)

    monkeypatch.setattr(agent.files, "read_into", shrink)
    assert refused(lambda: read(agent)) == (Code.SIZE, "grad shrank to 10 bytes while it was read: leave it alone until the reply")


def test_a_push_with_nan_is_refused_and_counted(agent: AgentChannel, directory: Path) -> None:
    (directory / "grad").write_bytes(np.array([1, 2, np.nan, 4, np.inf, 6], "<f4").tobytes())
    assert refused(lambda: read(agent)) == (Code.NONFINITE, "element 2 of table w is nan; nothing was applied")
    assert agent.counters()["nonfinite"] == 1


def test_denormal_numbers_arrive_bit_for_bit(agent: AgentChannel, directory: Path) -> None:  # SPEC 3.5
    tiny = np.array([1e-45, -1e-45, 1.1754942e-38, 0.0, -0.0, 1e-40], "<f4")
    (directory / "grad").write_bytes(tiny.tobytes())
    assert read(agent).tobytes() == tiny.tobytes()


def test_bytes_between_tables_are_ignored(root: Path) -> None:  # SPEC 3.2
    spec = JobSpec("job", 1, (TableSpec("w", (3,)), TableSpec("b", (1,))))
    with create_channel(root, Info.of(spec, 0, 1, boot_id(), 0)) as kept:
        agent = adopted(kept)
        push = np.full(17, np.nan, "<f4")
        push[:3], push[16] = (1, 2, 3), 4
        (kept.directory / "grad").write_bytes(push.tobytes())
        assert read(agent)[[0, 1, 2, 16]].tolist() == [1, 2, 3, 4]
        agent.close()


def test_a_push_as_text(agent: AgentChannel, directory: Path) -> None:
    (directory / "grad.txt").write_text("0\n1\n2\n3\n4\n5\n")
    assert read(agent, text=True).tolist() == VALUES.tolist()
    (directory / "grad.txt").write_text("0\n1,5\n2\n3\n4\n5\n")
    code, text = refused(lambda: read(agent, text=True))
    assert code is Code.FORMAT and text.startswith("line 2 of grad.txt: '1,5' is no number; the decimal point is '.'")


def test_a_huge_text_is_refused_unread(agent: AgentChannel, directory: Path) -> None:
    os.truncate(directory / "grad.txt", 1 << 40)
    code, text = refused(lambda: read(agent, text=True))
    assert code is Code.SIZE and "6 lines need at most" in text


# -- what the agent stores


def words(directory: Path) -> page.Moving:
    return page.read_moving((directory / "ctl").read_bytes())


def test_the_stores_of_one_request(agent: AgentChannel, directory: Path) -> None:  # SPEC 7.8 7.12 7.13
    (directory / "grad").write_bytes(VALUES.tobytes())
    rep = os.open(directory / "rep", os.O_RDONLY | os.O_NONBLOCK)
    before = words(directory)
    agent.set_current(1)
    assert words(directory) == before._replace(cur_seq=1, state=BUSY)
    read(agent)
    agent.write_param(0, VALUES[:4])
    agent.write_param(16, VALUES[4:])
    assert (directory / "param").read_bytes() == VALUES.tobytes()
    agent.write_result(1, 1, 48, 0, 2.5, 1, stop=True)
    now = words(directory)
    assert (now.done_seq, now.clock, now.version, now.status, now.state, now.done_flags) == (0, 1, 48, 0, READY, page.FLAG_STOP)
    assert page.read_result((directory / "ctl").read_bytes(), 0) == page.Result()
    agent.set_done(1)
    assert words(directory) == now._replace(done_seq=1)
    assert page.read_result((directory / "ctl").read_bytes(), 1) == page.Result(1, 1, 48, 0, page.FLAG_STOP, 2.5, 1)
    assert agent.reply(agent.repeat())
    reply = parse_reply(os.read(rep, 64))
    assert (reply.ok, reply.seq, reply.clock, reply.version, reply.stop) == (True, 1, 1, 48, True)
    os.close(rep)
    counted = page.read_counters((directory / "ctl").read_bytes())
    wanted = {"requests": 1, "pushes": 1, "pulls": 1, "bytes_pushed": 24, "bytes_pulled": 24, "errors": 0, "adoptions": 1}
    assert {name: counted[name] for name in wanted} == wanted


def test_values_are_written_in_place_under_a_mapping(agent: AgentChannel, directory: Path) -> None:  # SPEC 1.8
    with open(directory / "param", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        agent.set_current(1)
        agent.write_param(0, VALUES)
        assert mapped[:] == VALUES.tobytes()


def test_values_as_text_replace_the_longer_text_before(agent: AgentChannel, directory: Path) -> None:
    agent.write_text((VALUES / 3).astype("<f4"))
    agent.write_text(VALUES)
    assert (directory / "param.txt").read_text() == "0\n1\n2\n3\n4\n5\n"


def test_a_param_that_the_program_replaced_is_written_where_it_looks(agent: AgentChannel, directory: Path) -> None:
    agent.set_current(1)
    agent.write_param(0, VALUES)
    (directory / "param").unlink()
    (directory / "param").touch()
    agent.set_current(2)
    agent.write_param(0, VALUES)
    assert (directory / "param").read_bytes() == VALUES.tobytes()


def test_the_error_text_is_one_line_and_never_leaves_its_page(agent: AgentChannel, directory: Path) -> None:  # SPEC 6.5
    agent.write_error("SIZE seq=3: short\nwithout end")
    assert (directory / "err").read_bytes() == b"SIZE seq=3: short without end\n"
    agent.write_error("ä" * 10_000)
    assert len((directory / "err").read_bytes()) <= 4096
    agent.write_error("short")
    assert (directory / "err").read_bytes() == b"short\n"
    assert (directory / "err").stat().st_blocks * 512 >= 4096  # still reserved


def test_errors_are_logged_once_with_their_count(agent: AgentChannel, kept: Channel, directory: Path) -> None:  # SPEC 7.16
    for number in (1, 2, 1, 1):
        agent.write_error(f"error {number}")
    found = [entry for _at, entry in page.read_log((directory / "ctl").read_bytes())]
    assert [(entry.text, entry.times, entry.last_ns) for entry in found] == [("error 1", 3, 7), ("error 2", 1, 7)]
    agent.abandon()
    later = adopted(kept)
    later.write_error("error 2")
    assert [entry.times for _at, entry in page.read_log((directory / "ctl").read_bytes())] == [3, 2]
    for number in range(1000):
        later.write_error(f"{number} " * 20)
    whole = (directory / "ctl").read_bytes()
    assert [entry.text for _at, entry in page.read_log(whole)][:2] == ["error 1", "error 2"]
    assert not any(whole[page.LOG_END :][:8])  # result_even is still empty
    later.close()


def test_a_program_that_reads_no_replies_is_given_up(agent: AgentChannel, directory: Path) -> None:  # SPEC 5.8
    record = agent.repeat()
    given = 0
    while agent.reply(record):
        given += 1
    assert given == 1024
    assert words(directory).state == BROKEN


def test_a_full_file_system_is_nospc_and_an_error_text_survives_it(agent: AgentChannel, monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC 3.11
    def full(*_arguments: object) -> int:
        raise OSError(28, os.strerror(28))

    agent.set_current(1)
    monkeypatch.setattr(os, "pwrite", full)
    assert refused(lambda: agent.write_param(0, VALUES)) == (Code.NOSPC, "param cannot be written: the channel root is full")
    assert refused(lambda: agent.write_text(VALUES))[0] is Code.NOSPC
    monkeypatch.undo()
    agent.write_error("NOSPC seq=1: param cannot be written")


# -- bells, beats, ends


def test_bells_wake_and_carry_nothing(agent: AgentChannel, directory: Path) -> None:  # SPEC 5.1
    with open(directory / "req", "wb", buffering=0) as bell:
        bell.write(b"step 9 9 and lots of chatter\n" * 300)
        assert agent.drain_bell()
        bell.write(b"\n")
        assert agent.drain_bell()
    assert agent.drain_bell()
    assert agent.read_cmd() is None


def test_the_bell_tells_that_the_launcher_has_gone(kept: Channel) -> None:  # SPEC 9.8
    agent = adopted(kept)
    assert agent.drain_bell()
    kept.close(remove=False)
    assert not agent.drain_bell()
    assert not agent.reply(agent.repeat())
    agent.close()
    fd = os.open(kept.root, os.O_RDONLY)
    remove_tree(fd, kept.name)
    os.close(fd)


def test_a_bell_that_was_removed_or_replaced_is_noticed_at_the_next_beat(agent: AgentChannel, directory: Path) -> None:  # SPEC 1.9 12.1
    agent.beat(123)
    assert words(directory).agent_beat == 123
    (directory / "req").unlink()
    assert refused(lambda: agent.beat(124)) == (Code.PERM, "req has been removed: a channel's FIFOs must stay")
    subprocess.run(["sh", "-c", f"echo > {directory}/req"], check=True)
    assert (directory / "req").is_file()
    code, text = refused(lambda: agent.beat(125))
    assert code is Code.PERM and text.startswith("req has been replaced, perhaps by writing to it after it was removed")


def test_the_end_is_noted(agent: AgentChannel, directory: Path) -> None:
    agent.set_state(page.PARKED)
    assert words(directory).state == page.PARKED
    agent.close()
    agent.close()
    assert words(directory).state == CLOSED


# -- adoption


def test_an_adopting_agent_goes_on_where_the_dead_one_stopped(kept: Channel, agent: AgentChannel, directory: Path) -> None:  # SPEC 9.4 7.13
    for seq in (1, 2, 3):
        agent.set_current(seq)
        agent.write_result(seq, seq, 10 * seq, 0, 0.5, seq)
        agent.set_done(seq)
    agent.set_current(4)
    agent.write_result(4, 4, 40, 0, 0.0, 4)
    agent.abandon()  # before set_done: the words say 4, the result of 3 is whole
    later = adopted(kept, agent_id=2)
    assert later.result == page.Result(3, 3, 30, 0, 0, 0.5, 3)
    assert (later.cur_seq, later.done_seq) == (4, 3)
    now = words(directory)
    assert (now.agent_id, now.clock, now.version, now.state) == (2, 3, 30, READY)
    assert later.counters()["adoptions"] == 2
    assert parse_reply(later.repeat()).seq == 3
    later.close()


def test_a_new_generation_begins_at_the_clock_of_the_one_before(root: Path) -> None:
    with create_channel(root, Info.of(SPEC, 0, 2, boot_id(), 17)) as kept:
        agent = adopted(kept)
        assert agent.result == page.Result(0, 17)
        assert parse_reply(agent.repeat()).clock == words(kept.directory).clock == 17
        agent.close()


def test_only_a_kept_channel_is_adopted(kept: Channel) -> None:  # SPEC 9.2
    root_fd = os.open(kept.root, os.O_RDONLY)
    name = kept.name
    kept.close(remove=False)
    assert refused(lambda: adopt(root_fd, name, 1)) == (Code.PERM, "the channel job.0.1 is kept by nobody: its launcher is gone")
    assert refused(lambda: adopt(root_fd, "no.0.1", 1))[0] is Code.PERM
    remove_tree(root_fd, name)
    os.close(root_fd)


def damaged_page(directory: Path) -> None:
    with open(directory / "ctl", "r+b") as ctl:
        ctl.seek(0x20)
        ctl.write(b"\x99")


def other_info(directory: Path) -> None:
    text = (directory / "info").read_text()
    (directory / "info").chmod(0o600)
    (directory / "info").write_text(text.replace("gen=1", "gen=2"))


def other_boot(directory: Path) -> None:
    text = (directory / "info").read_text()
    (directory / "info").chmod(0o600)
    (directory / "info").write_text(text.replace(boot_id(), "0" * 32))


def plain_bell(directory: Path) -> None:
    (directory / "rep").unlink()
    (directory / "rep").touch()


@pytest.mark.parametrize(
    ("damage", "code", "words_"),
    [
        (damaged_page, Code.VERSION, "ctl is damaged: its checksum does not fit"),
        (other_info, Code.VERSION, "ctl, info and the name of the channel job.0.1 do not belong together"),
        (other_boot, Code.GONE, "the channel job.0.1 is of another boot of this host"),
        (lambda directory: (directory / "info").unlink(), Code.PERM, "info cannot be reached: No such file or directory"),
        (lambda directory: (directory / "ctl").unlink(), Code.PERM, "ctl cannot be reached: No such file or directory"),
        (lambda directory: (directory / "req").unlink(), Code.PERM, "req cannot be opened: No such file or directory"),
        (plain_bell, Code.PERM, "rep is not the FIFO that was made with the channel"),
        (lambda directory: directory.chmod(0o755), Code.PERM, "the channel's directory job.0.1 must be yours and have mode 0700, not 0755"),
    ],
)
def test_a_damaged_channel_is_refused_with_a_sentence(kept: Channel, directory: Path, damage: Callable[[Path], object], code: Code, words_: str) -> None:  # SPEC 7.11 9.2 1.2
    damage(directory)
    assert refused(lambda: adopted(kept)) == (code, words_)


def test_a_channel_behind_a_link_is_refused(kept: Channel, root: Path) -> None:
    (root / "job.0.2").symlink_to(kept.directory)
    root_fd = os.open(root, os.O_RDONLY)
    code, _text = refused(lambda: adopt(root_fd, "job.0.2", 1))
    assert code is Code.PERM
    os.close(root_fd)
    (root / "job.0.2").unlink()
