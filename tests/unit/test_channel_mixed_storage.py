"""Dense tables of one job of which some are kept as another kind of number and some are not: all of them are read."""

from __future__ import annotations

import numpy as np
import pytest

from plugml.core.job import JobSpec
from plugml.core.table import TableSpec
from plugml.shm_protocol.info import Info
from plugml.shm_protocol.request import parse_request
from plugml.shm_protocol.twin import MemoryFiles, adopt_twin


@pytest.mark.parametrize("text", [False, True])
def test_a_table_that_is_kept_as_it_is_beside_one_that_is_converted(text: bool) -> None:
    tables = (TableSpec("as_it_is", (3,), dtype="f32"), TableSpec("converted", (2,), dtype="f32", storage="f64"), TableSpec("whole", (2,), dtype="i64", optimizer="add"))
    spec = JobSpec("mixed", 1, tables)
    info = Info.of(spec, 0, 1, "0" * 32, 0, 1)
    files = MemoryFiles(info)
    places = spec.layout.places
    numbers = ([1.5, -2.0, 3.0], [4.0, 5.25], [6, -7])
    for place, values in zip(places, numbers):
        files.contents["grad"][place.offset : place.offset + place.table.nbytes] = np.array(values, place.table.numpy_dtype).tobytes()
    if text:
        files.contents["grad.txt"][:] = "".join(f"{value}\n" for values in numbers for value in values).encode()
    channel = adopt_twin(files, info, 1)
    data = channel.read_data(parse_request(b"push 1 0 fmt=text" if text else b"push 1 0"), np.zeros(channel.reader.stored_bytes, np.uint8))
    stored = spec.stored_layout.places
    seen = [np.frombuffer(data.buffer, place.table.storage_dtype, place.table.count, place.offset).tolist() for place in stored]
    assert seen == [list(values) for values in numbers]


def test_a_kept_text_that_is_longer_than_the_numbers_and_ends_anywhere_is_found_again() -> None:
    """The slot grows to the text's last byte; the parts that are empty lie behind it, and are not missed."""
    info = Info.of(JobSpec("long", 1, (TableSpec("w", (9,), dtype="f32"),)), 0, 1, "0" * 32, 0, 1)
    files = MemoryFiles(info)
    numbers = [1.0 + number / 7 for number in range(9)]
    files.contents["grad.txt"][:] = "".join(f"{value!r}\n" for value in numbers).encode()
    channel = adopt_twin(files, info, 1)
    request = parse_request(b"push 1 0 async=1 fmt=text")
    channel.keep(0, request)
    data = channel.read_kept(0, request, np.zeros(channel.reader.stored_bytes, np.uint8))
    assert np.frombuffer(data.buffer, "<f4", 9).tolist() == np.array(numbers, "<f4").tolist()
