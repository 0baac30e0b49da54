"""A run's input: which worker gets which files, slices or pieces.  Pure; globs and slices are made by datafiles.py.

    files    globs: worker k gets every W-th file, as {data}
    shard    one file, cut into W slices of equal length: worker k gets slice k, as {data}
    pieces   globs, or FILE:lines:N: handed out one by one, when a worker asks for the `next`

Owns the three ways and their words.  Knows no file's contents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import UsageError

FILES, SHARD, PIECES = "files", "shard", "pieces"
#: How a file is cut: `csv` has one line of names in front, which every slice gets, and lines may lie inside quotes.
CUTS = ("csv", "lines", "libsvm")
SLICES_MAX = 1_000_000
DATA = "{data}"
SHARDS, PIECES_DIR = "shards", "pieces"  # inside the run's directory
NAMED_MAX = 4  # names that one sentence holds


@dataclass(slots=True, frozen=True)
class Data:
    """`kind` is FILES, SHARD, PIECES, or "" for a job that declares no input.

    `found` is what the globs have met, once somebody has looked.
    """

    kind: str = ""
    globs: tuple[str, ...] = ()  # of files or pieces
    source: str = ""  # the file that is cut
    cut: str = ""  # csv, lines or libsvm
    slices: int = 0  # of a file that is cut into pieces
    passes: int = 0  # over the pieces
    found: tuple[str, ...] = ()

    def of(self, worker: int, workers: int, directory: str) -> tuple[str, ...]:
        """What {data} stands for; `directory` is that of the run."""
        if self.kind == FILES:
            return self.found[worker::workers]
        return (slice_path(directory, SHARDS, worker, workers, self.source),) if self.kind == SHARD else ()

    def pieces(self, directory: str) -> tuple[str, ...]:
        """Every piece, as its program gets it."""
        if self.slices:
            return tuple(slice_path(directory, PIECES_DIR, number, self.slices, self.source) for number in range(self.slices))
        return self.found if self.kind == PIECES else ()


def slice_path(directory: str, folder: str, number: int, count: int, source: str) -> str:
    """Name of a slice: it keeps the ending of its source, which programs look at.

    >>> slice_path("/runs/t", "shards", 3, 12, "in/digits.csv")
    '/runs/t/shards/03.csv'
    """
    name = source.rsplit("/", 1)[-1]
    stem, dot, ending = name.rpartition(".")
    return f"{directory}/{folder}/{number:0{len(str(count - 1))}d}" + (f".{ending}" if dot and stem and len(ending) <= 8 else "")


def parse_data(section: Mapping[str, Any], passes: object, where: str = "[data]") -> Data:
    """Check what [data] or its flags say.  Raises `UsageError`."""
    given = [key for key in (FILES, SHARD, PIECES) if section.get(key)]
    if len(given) > 1:
        raise UsageError(f"{where}: {' and '.join(given)} both say what the workers read; keep one")
    empty = [key for key in (FILES, SHARD, PIECES) if key in section and not section[key]]
    if empty:
        raise UsageError(f"{where}: {empty[0]} is empty")
    if passes is not None and given != [PIECES]:
        raise UsageError(f"passes = {passes} counts passes over the pieces of [data], and this job has none")
    if passes is not None and (not isinstance(passes, int) or not 1 <= passes <= 1 << 31):
        raise UsageError(f"passes = {passes}; from 1 to 2^31")
    if not given:
        return Data()
    if given == [SHARD]:
        source, cut = _cut(str(section[SHARD]))
        return Data(SHARD, source=source, cut=cut)
    words = section[given[0]]
    globs = (words,) if isinstance(words, str) else tuple(words)
    for word in globs:
        if not isinstance(word, str) or not word:
            raise UsageError(f"{where}: {given[0]} {word!r} is no name of files")
    if given == [FILES]:
        return Data(FILES, globs)
    whole = _sliced(globs)
    return Data(PIECES, globs, *whole, passes=_number(passes)) if whole else Data(PIECES, globs, passes=_number(passes))


def _number(passes: object) -> int:
    return passes if isinstance(passes, int) else 0


def _cut(text: str) -> tuple[str, str]:
    """`FILE[:csv|lines|libsvm]`; without a word the file's ending tells."""
    source, colon, word = text.rpartition(":")
    if colon and source and word in CUTS:
        return source, word
    ending = text.rpartition(".")[2].lower()
    return text, {"csv": "csv", "svm": "libsvm", "libsvm": "libsvm", "svmlight": "libsvm"}.get(ending, "lines")


def _sliced(globs: Sequence[str]) -> tuple[str, str, int] | None:
    """`FILE:lines:N` (or csv, libsvm) -> file, cut, slices; None for globs."""
    rest, colon, number = globs[0].rpartition(":")
    source, second, word = rest.rpartition(":")
    if not (colon and second and source and word in CUTS):
        return None
    if not (number.isascii() and number.isdecimal()) or not 1 <= int(number[:9]) <= SLICES_MAX:
        raise UsageError(f"pieces {globs[0]!r}: {number!r} slices; write FILE:{word}:N, N from 1 to {SLICES_MAX:,}")
    if len(globs) > 1:
        raise UsageError(f"pieces {globs[0]!r} cuts one file: name no other files beside it")
    return source, word, int(number)


def check_found(data: Data, workers: int) -> None:
    """What the globs have met is enough.  Raises `UsageError`."""
    if data.kind == FILES and len(data.found) < workers:
        have = f"{len(data.found)} file{'s' * (len(data.found) != 1)}"
        raise UsageError(f"{have} for {workers} workers: worker {len(data.found)} would have none; use fewer workers, or cut one file with --shard")
    for name in data.found if data.kind == PIECES else ():
        if "\n" in name:
            raise UsageError(f"the name {name!r} holds a newline: a piece of input is told in one line")


def check_commands(data: Data, commands: Sequence[Sequence[str]], stdin: str) -> None:
    """Files and slices need a place to go to.  Raises `UsageError`."""
    if data.kind not in (FILES, SHARD) or DATA in stdin:
        if data.kind == PIECES and (DATA in stdin or any(DATA in word for command in commands for word in command)):
            raise UsageError(f"{DATA} stands for files and slices; pieces are asked for by the program, with its client's next()")
        return
    for worker, command in enumerate(commands):
        if not any(DATA in word for word in command):
            raise UsageError(f"the command of worker {worker} has no {DATA}, so its files would go nowhere: put {DATA} where it takes them")


def fill_word(word: str, names: Sequence[str]) -> list[str]:
    """Put the files in the place of {data}: one argument each where it stands alone, else all in one word.

    >>> fill_word("{data}", ["a b.csv", "c.csv"]), fill_word("--in={data}", ["a.csv", "c.csv"])
    (['a b.csv', 'c.csv'], ['--in=a.csv c.csv'])
    """
    if word == DATA:
        return list(names)
    if DATA not in word:
        return [word]
    odd = next((name for name in names if len(names) > 1 and any(char in name for char in " \t\n'\"")), "")
    if odd:
        raise UsageError(f"{word!r}: several files inside one word are joined by blanks, and {odd!r} holds a blank or a quote: let {DATA} stand alone")
    return [word.replace(DATA, " ".join(names))]


# -- words ------------------------------------------------------------------------------------------------------------


def named(names: Sequence[str]) -> str:
    """`a.csv, b.csv`, `a.csv, b.csv, c.csv, d.csv, ... (12 in all)`."""
    more = f", ... ({len(names)} in all)" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


def lines(data: Data, workers: int, directory: str, first: int = 0) -> list[str]:
    """What each worker reads, for the first lines of a run; `first` is the number of the first of them."""
    if data.kind == FILES:
        return [f"data: worker {first + worker} reads {named(data.of(worker, workers, directory))}" for worker in range(workers)]
    if data.kind == SHARD:
        return [f"data: {data.source} ({data.cut}) is shuffled and cut into {workers} slices: {named([data.of(worker, workers, directory)[0] for worker in range(workers)])}"]
    if data.kind == PIECES:
        count = data.slices or len(data.found)
        times = f", {data.passes} times each" if data.passes > 1 else ""
        what = f"{data.source} ({data.cut}) cut into {count} pieces" if data.slices else f"{count} pieces ({named(data.found)})"
        return [f"data: {what} are handed out as workers ask for them{times}"]
    return []


def unseen(data: Data, worker: int, workers: int, directory: str) -> str:
    """What nobody reads any more when this worker is gone for good."""
    if data.kind == FILES:
        return f"no longer seen: {named(data.of(worker, workers, directory))}"
    if data.kind == SHARD:
        return f"no longer seen: slice {worker} of {workers} of {data.source} ({data.of(worker, workers, directory)[0]})"
    return "its piece goes to another worker" if data.kind == PIECES else "its part of the data is no longer seen"


def document(data: Data, workers: int, directory: str) -> dict[str, Any]:
    """Who read what, for result.json."""
    if not data.kind:
        return {}
    told: dict[str, Any] = {"kind": data.kind}
    if data.source:
        told |= {"source": data.source, "cut": data.cut}
    if data.kind == PIECES:
        return {**told, "pieces": list(data.pieces(directory)), "passes": max(1, data.passes)}
    return {**told, "workers": [list(data.of(worker, workers, directory)) for worker in range(workers)]}
