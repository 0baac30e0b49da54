"""Every numbered sentence of SPEC.md: whom it binds, in short, and what its breach looks like from outside.

A sentence that binds a program (or a client library) is checked, here is what to do about a breach and what it takes to
reach it.  The others stand here with the reason why nothing is checked.  A test compares the numbers with SPEC.md's.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """`unseen`: why nothing is checked; empty = it is.  `remedy` and `needs` belong to those that are."""

    number: str
    text: str
    remedy: str = ""
    needs: str = ""
    unseen: str = ""

    @property
    def checked(self) -> bool:
        return not self.unseen


def _checked() -> list[Rule]:
    """(number, text, what to do, what it takes to reach it)."""
    rows = [
        ("1.9", "the program removes or replaces none of the agent's files", "write into cmd, grad and their like only; values are read from param, never moved", "a request"),
        ("1.10", "between its bell and the reply the program touches no file of the channel", "wait for the reply before the next write; copy the gradient if the computation goes on", "a request"),
        ("2.2", "a reader of info passes over keys that it does not know, and takes single keys in any order", "look keys up by name; skip the rest", "the program reads info"),
        ("2.3", "a reader of info refuses another version than 1", "end with an error if version= is not 1", "the program reads info"),
        ("2.9", "without PLUGML_DIR the program runs alone", "ask for PLUGML_DIR before anything else, and train as before if it is not there", ""),
        ("2.10", "a client that finds PLUGML_DIR but no usable channel there fails and does not run alone", "end with another code than 0 if req and rep cannot be opened", ""),
        ("2.15", "a client that cannot wait for a semaphore refuses bell=sem", "read bell= in info; wait for the semaphore, or end with an error", "posix_ipc is installed"),
        ("3.1", "data are raw numbers of the table's dtype, little-endian, without a header", "write little-endian numbers of the dtype in info", "a raw push of a dense table"),
        ("3.3", "without n= the data files have exactly the bytes that take part", "truncate the file before writing (12.2), write no record markers (12.5), use the table's dtype (12.6)", "a raw push without n="),
        ("3.4", "with n= it is `count`, and the data files have at least the bytes that take part", "say the number of dense elements and write all of them", "a push with n="),
        ("3.5", "every float pushed is finite", "look for an overflow in the program", "a raw push of floats"),
        ("3.7", "a text file has one number a line, all that takes part, no padding, no blank lines", "write each number on its own line", "a push with fmt=text"),
        ("3.8", "a number is digits, a sign, `.` and an exponent, whatever the user's language", "run with LC_NUMERIC=C (12.3)", "a push with fmt=text"),
        ("3.9", "text holds no nan, inf or NA, and no number that the dtype cannot hold", "look for an overflow in the program", "a push with fmt=text"),
        ("3.14", "gidx and want hold the sections' row numbers, each section from the next multiple of 8", "write u32 or u64 as the table's index says, sections in the order of the line", "a request with row numbers"),
        ("3.16", "a row number is below the table's rows", "count rows from 0 (12.10)", "a request with row numbers"),
        ("3.17", "gkey and wkey hold the keys of the sections in order, one a line", "truncate the file, one line for each key", "a request with string keys"),
        ("3.18", "a key is UTF-8, 1 to 255 bytes, none of them a newline", "encode keys as UTF-8; leave out empty ones", "a request with string keys"),
        ("3.19", "no two keys of a table have one hash", "rename one of the two", "a request with string keys"),
        ("3.20", "with fmt=text row numbers stand in gidx.txt and want.txt, one a line", "write the row numbers as text, too", "a text request with row numbers"),
        ("3.21", "the table's storage can hold every number that is pushed", "scale the numbers, or choose another storage", "a push to a table with storage="),
        ("4.1", "cmd holds one line of ASCII, at most 4,095 bytes before its newline", "write `<verb> <seq> <clock> [key=value ...]`", "a request"),
        ("4.2", "a newline ends the line: it is the commit point", "end the line with \\n", "a request"),
        ("4.3", "a program that does not truncate cmd writes the line in one write", "put the whole line together, then write it once (or truncate first)", "cmd is written without truncating it"),
        ("4.4", "the verb is one of hello init push pull pushpull step clock next ping bye", "see the table of verbs in SPEC.md", "a request"),
        ("4.5", "requests are numbered 1, 2, 3 ... without a gap, refused ones included; hello has 0", "count every request that is answered, also with err; except AGAIN", "a request"),
        ("4.6", "the clock is the number of clocks finished, the first time that of info", "start at PLUGML_CLOCK and take the clock from each reply", "a request with a clock"),
        ("4.7", "keys are known, given once, and belong to the verb", "see the table of keys in SPEC.md", "a request with keys"),
        ("4.8", "numbers in requests are decimal digits; w= may have a `.` and an exponent, from 0 to 2^53", "format numbers in the C locale, without sign", "a request"),
        ("4.10", "at most 1,024 pushes in a clock under BSP", "say clock or step more often", "a push"),
        ("4.12", "table= names a sparse table of the job, each once", "take names from info; dense tables travel whole", "a request with table="),
        ("4.13", "k= and want= are at most the table's batch and fit to the verb", "send several requests, or give the table a larger batch", "a request with table="),
        ("4.14", "next is asked only in a job with pieces of input", "leave next out, or give the job a list", "the program says next"),
        ("4.16", "after an accepted push failed, the next request is refused, and the program minds it", "treat that err as one of the earlier push", "the program pushes with async=1"),
        ("4.17", "after TIMEOUT nothing is sent again", "the push was accepted: say `pull`, then go on with the clock of the reply", "the program says t="),
        ("5.1", "the program rings by writing a byte into req", "write one byte into the FIFO req after cmd", ""),
        ("5.2", "data first, then cmd, then the bell, each in its file before the next", "flush or close the file before the next step (12.7)", "a request"),
        ("5.4", "the program reads records until one has its own seq, and discards others", "compare the second word of each record with the seq of the request", "a request"),
        ("5.5", "the program reads exactly 64 bytes, or one line", "read 64 bytes; a buffered reader asks for more and waits for ever", "a request"),
        ("5.7", "end of file on rep means GONE", "end with an error when read gives 0 bytes", "rep is opened for reading only"),
        ("5.8", "the program reads its replies", "read 64 bytes from rep after each bell", "a request"),
        ("5.9", "the program does not wait by a timer for what a bell tells", "block in read(rep) instead of looking again and again", "a request"),
        ("5.10", "a program that says hello first throws away what lies unread in rep", "empty rep before the bell of hello", "the program says hello"),
        ("5.12", "a program woken by the semaphore waits again if reply has not its own seq", "compare the seq of the record in reply", "the program waits for a semaphore"),
        ("5.13", "a program woken with nobody left to answer takes that as GONE", "look at reply and at state in ctl when woken", "the program waits for a semaphore"),
        ("6.3", "after hello the next request has done + 1", "go on at done= of the answer", "the program says hello"),
        ("6.7", "after stop=1, and after err code=STOP, the loop ends normally", "end the training loop at stop=1 or STOP, with exit code 0", "a request that ends a clock"),
        ("6.8", "a reader of replies passes over keys that it does not know, and does without v, n, k and lag", "look keys up by name", "a request"),
        ("6.10", "after AGAIN the program waits a moment and rings again with the same line", "keep seq and line, and ring once more", "a request"),
        ("7.11", "a reader of ctl refuses another abi_major and accepts a greater abi_minor", "check magic, abi_major, endian and crc32, and nothing more", "the program reads ctl"),
        ("8.1", "a client tells every code as what it is, and goes on with the next request", "give the caller the word behind code=", "the driver form"),
        ("8.2", "after VERSION, GONE and FENCED the channel answers nothing any more: the program ends, not well", "end with another code than 0", "a request"),
        ("9.7", "a program that ends well ends with exit code 0", "return 0 when all is done", ""),
        ("9.9", "bye comes only from the process that attached, and nothing after it", "remember the process number at attach; let a forked child leave by _exit", "the program says bye"),
        ("9.10", "a client notices that its descriptors were closed and opens the files again", "reopen by path when a descriptor is not the file that it was", "the driver form with an op `close`"),
    ]  # fmt: skip
    return [Rule(*row) for row in rows]


_AGENT = "binds the agent"
_LAUNCHER = "binds the launcher"
_MAY = "a permission: nobody can break it"
_LAYOUT = "says how files are laid out; a breach shows as 3.3 or 3.4"
_UNSEEN: dict[str, dict[str, str]] = {
    _AGENT: {
        "1.3": "files with other names are ignored", "1.8": "param and replies are written in place", "2.14": "storage= in a table's line",
        "3.6": "fmt=text reads grad.txt and writes param.txt", "3.10": "text gives the same bits again", "3.11": "a full file system is NOSPC",
        "4.9": "what pull may see", "4.11": "a refused request was not applied", "4.15": "async=1 is carried out in order", "4.18": "what is STOP after the stop clock",
        "5.3": "a reply is 64 bytes", "5.11": "bell=sem: record, then semaphore", "5.14": "who makes and posts the semaphore",
        "6.1": "the seq of a reply", "6.2": "the clock of a reply", "6.4": "v=, n= and k= of a reply", "6.5": "code= and err", "6.6": "lag=",
        "6.9": "done_seq moves with every request", "7.1": "cmd is read until two reads agree", "7.2": "no newline: no request yet", "7.3": "the same line: nothing happens",
        "7.4": "hello is always answered", "7.5": "seq = done_seq + 1 is carried out", "7.6": "seq = done_seq on adoption repeats the reply", "7.7": "any other seq is SEQ",
        "7.8": "the order of stores", "7.9": "no mapping, no links, owners checked", "7.10": "the layout of ctl", "7.12": "done_seq is one store", "7.13": "results by parity",
        "7.14": "the counters", "7.15": "counters after a death", "7.16": "the log of errors", "7.17": "the layout of pend.*", "7.18": "kept pushes come first", "7.19": "the layout of sums",
        "9.2": "only locked channels are served", "9.3": "one agent a root", "9.4": "adoption", "9.5": "what is swept", "9.8": "a dead launcher's channel",
    },
    _LAUNCHER: {
        "1.1": "the directory's name", "1.2": "its mode and owner", "1.4": "it appears whole", "1.5": "files have their full size", "1.6": "they hold zeros",
        "1.11": "it is removed at the end", "2.1": "info is ASCII", "2.4": "the line of a dense table", "2.5": "offset=", "2.6": "cap_grad and cap_param", "2.8": "the environment",
        "2.11": "the line of a sparse table", "2.12": "rows and batch of a table", "2.13": "cap_idx", "5.6": "req and rep are held open", "5.15": "the semaphore is removed",
        "9.1": "how a channel is made", "9.6": "GONE by the launcher", "10.1": "where the root lies", "10.2": "its mode", "10.3": "its length", "10.4": "the trust boundary",
    },
    _MAY: {
        "1.7": "the program may replace or truncate its files", "3.2": "bytes between tables are ignored", "3.15": "rows in any order, and twice",
    },
    _LAYOUT: {
        "2.7": "order of elements", "3.12": "what takes part", "3.13": "where it lies",
    },
}  # fmt: skip


#: Traps: what people do, and the sentence that is broken then.
_TRAPS = {
    "12.1": ("a plain file in the place of req", "9.7"), "12.2": (">> appends", "3.3"), "12.3": ("a decimal comma", "3.8 or 4.8"),
    "12.4": ("a counter lost in a subshell", "4.5"), "12.5": ("record markers of Fortran", "3.3"), "12.6": ("float64 for float32", "3.3"),
    "12.7": ("output that was not flushed", "5.2"), "12.8": ("children that steal replies", "5.4 or 5.5"), "12.9": ("Python's shared_memory", "1.9"),
    "12.10": ("rows counted from 1", "3.16"), "12.11": ("another /dev/shm", "2.15"),
}  # fmt: skip


def _key(number: str) -> tuple[int, int]:
    section, sentence = number.split(".")
    return int(section), int(sentence)


def _all() -> dict[str, Rule]:
    rules = _checked()
    for reason, sentences in _UNSEEN.items():
        rules += [Rule(number, text, unseen=reason) for number, text in sentences.items()]
    rules += [Rule(number, text, unseen=f"a trap: it shows as a breach of {shows}") for number, (text, shows) in _TRAPS.items()]
    assert len({rule.number for rule in rules}) == len(rules), "a sentence stands twice in the table"
    return {rule.number: rule for rule in sorted(rules, key=lambda rule: _key(rule.number))}


RULES = _all()

#: A breach on the left makes those on the right happen: what is cause and what comes of it.
CONSEQUENCES: dict[str, frozenset[str]] = {
    "5.2": frozenset({"1.10", "3.1", "5.4", "3.3", "3.4", "3.5", "3.7", "3.8", "4.1", "4.2", "5.1", "9.7"}),
    "5.8": frozenset({"1.10", "4.5", "4.6", "5.4", "5.5", "6.7", "6.10", "8.2", "9.7"}),
    "5.4": frozenset({"1.10", "4.5", "4.6", "9.7"}),
    "1.10": frozenset({"3.3", "3.4", "3.5", "3.7", "3.8", "9.7"}),
    "9.9": frozenset({"4.5", "4.6", "8.2", "9.7"}),
    "4.3": frozenset({"4.1", "4.4", "4.5", "4.6", "4.7", "4.8", "5.5", "9.7"}),
}
