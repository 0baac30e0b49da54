"""Model files as numbers and the rest: what is read is what was written, and what is not surely the same number is refused."""

from __future__ import annotations

import doctest
import importlib
import io
import json
import pkgutil
import struct
import zipfile
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import plugml.layouts
from plugml.core.errors import UsageError
from plugml.layouts import LayoutError, detect, matches, parse_layout, read, split_file, write

FINITE = st.floats(allow_nan=False, allow_infinity=False)
AUTO = parse_layout("")


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz(packed: bool = False, **arrays: Any) -> bytes:
    out = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(out, **arrays)
    return out.getvalue()


def tensors(order: list[str], **arrays: Any) -> bytes:
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for name in order:
        data = arrays[name].tobytes()
        kind = {"f4": "F32", "f8": "F64", "i8": "I64", "f2": "F16", "u2": "BF16"}[arrays[name].dtype.str[1:]]
        header[name] = {"dtype": kind, "shape": list(arrays[name].shape), "data_offsets": [len(body), len(body) + len(data)]}  # type: ignore[dict-item]
        body += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


class Pipe(io.RawIOBase):
    """Where a zip is written when nobody can go back in it: sums follow the bytes, as in PyTorch's files."""

    def __init__(self) -> None:
        self.data = b""

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        self.data += bytes(piece)
        return len(piece)


def torch_file(sums_follow: bool = True, names: tuple[str, ...] = ("w", "n"), **storages: Any) -> bytes:
    """What torch.save writes of a dict of tensors, as far as it matters here: each instruction of the pickle by hand."""

    def word(text: str) -> bytes:
        return b"X" + struct.pack("<I", len(text)) + text.encode()

    program = b"\x80\x02}q\x00("
    for number, (name, kind) in enumerate(zip(names, storages)):
        kind_word = b"ctorch\n" + kind.encode() + b"\nq\x05"
        first = word("storage") + b"q\x04" if number == 0 else b"h\x04"
        program += word(name) + b"(" + first + kind_word + word(str(number)) + word("cpu") + b"K" + bytes([len(storages[kind])]) + b"tq\x06Q"
    program += b"u."
    out: Any = Pipe() if sums_follow else io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/byteorder", "little")
        for number, storage in enumerate(storages.values()):
            archive.writestr(f"archive/data/{number}", storage.tobytes())
        archive.writestr("archive/version", "3")
    data: bytes = out.data if sums_follow else out.getvalue()
    return data


W = np.arange(6, dtype=np.float32).reshape(2, 3) / 3
SAMPLES = {
    "f32": W.tobytes(), "f64": W.astype("<f8").tobytes(), "f32be": W.astype(">f4").tobytes(), "f32,offset=5": b"head!" + W.tobytes(),
    "f32,offset=-24": b"any head" + W.tobytes(), "f64,offset=8,count=2": struct.pack("<q2d", 7, 0.5, -1e300) + b"foot",
    "npy": npy(W), "npz": npz(a=W, steps=np.array([3]), b=W[0].astype("f8")), "safetensors": tensors(["w", "n"], w=W, n=np.array([4])),
    "lines": b"dim 3\nb 0.5 0.25 x\n17 -1e-3 1\na 2.5 0x1p+0\n",
    "torch": torch_file(FloatStorage=W.ravel(), LongStorage=np.array([7])),
    "text": b"seen 3\nw = 0.5, -1.25e-3 0x1.8p+1 1.0D+00\n",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(module.name for module in pkgutil.iter_modules(plugml.layouts.__path__)))
def test_the_examples_of_a_module_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"plugml.layouts.{name}")).failed == 0


@pytest.mark.parametrize("layout", SAMPLES)
def test_a_file_whose_numbers_stay_keeps_its_bytes(layout: str) -> None:
    content = read(SAMPLES[layout], parse_layout(layout))
    assert content.layout == layout
    assert write(content, content.numbers.copy()) == SAMPLES[layout]
    assert not matches(content, read(SAMPLES[layout], parse_layout(layout))).any()


@pytest.mark.parametrize("layout", SAMPLES)
def test_other_numbers_are_read_back_and_nothing_else_has_changed(layout: str) -> None:
    content = read(SAMPLES[layout], parse_layout(layout))
    again = read(write(content, content.numbers + 1.5), parse_layout(layout))
    floats = np.array([value != int(value) or layout not in ("text", "lines") for value in content.numbers])
    assert np.allclose(again.numbers[floats], content.numbers[floats] + 1.5, rtol=1e-6, atol=0)
    if layout not in ("text", "lines"):
        matches(content, again)
    assert again.skeleton == content.skeleton


@pytest.mark.parametrize("layout", SAMPLES)
def test_a_file_that_was_cut_anywhere_is_never_taken_for_a_whole_one(layout: str) -> None:
    """A cut at the end of the last number of a text can be seen only by what should stand behind it."""
    whole = read(SAMPLES[layout], parse_layout(layout))
    for size in range(len(SAMPLES[layout])):
        with pytest.raises(LayoutError):
            matches(whole, read(SAMPLES[layout][:size], parse_layout(layout)))


@pytest.mark.parametrize("layout", ["npy", "npz", "safetensors", "torch", "text"])
def test_a_layout_is_found_by_its_looks(layout: str) -> None:
    assert str(detect(SAMPLES[layout])) == layout
    assert read(SAMPLES[layout], AUTO).layout == layout


@settings(max_examples=300, deadline=None)
@given(st.lists(FINITE, min_size=1, max_size=20), st.data())
def test_every_float_survives_a_text(values: list[float], data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(["%.6g", "%.3f", "%.20e", "%a", "%.5E", "%r"]))
    tokens = [float(v).hex() if form == "%a" else form % v for v in [0.5] * len(values)]
    content = read(("w[" + "] [".join(tokens) + "]\n").encode(), AUTO)
    again = read(write(content, np.array(values)), AUTO)
    assert np.array_equal(again.numbers, np.array(values))
    matches(content, again)


@settings(max_examples=300, deadline=None)
@given(st.lists(FINITE, min_size=4, max_size=4), st.sampled_from(["f64", "npy", "npz", "packed", "safetensors"]))
def test_every_float_survives_a_binary_file(values: list[float], form: str) -> None:
    start = np.array([0.5, -0.0, 1.0, 2.0])
    data = {"f64": start.tobytes(), "npy": npy(start), "npz": npz(w=start), "packed": npz(packed=True, w=start), "safetensors": tensors(["w"], w=start)}[form]
    layout = parse_layout(form if form == "f64" else "")
    again = read(write(read(data, layout), np.array(values)), layout)
    assert np.array_equal(again.numbers, np.array(values))


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["", "text", "lines", "npy", "npz", "safetensors", "torch", "f32", "f64,offset=3", "f16,offset=-8"]))
def test_any_bytes_are_read_or_refused_with_a_sentence(data: bytes, layout: str) -> None:
    try:
        content = read(data, parse_layout(layout))
    except LayoutError as error:
        assert str(error)
        return
    assert content.numbers.size and np.isfinite(content.numbers).all()
    assert write(content, content.numbers) == data


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(SAMPLES)), st.integers(0, 10_000), st.integers(0, 255))
def test_a_damaged_file_is_read_or_refused_with_a_sentence(layout: str, place: int, byte: int) -> None:
    data = bytearray(SAMPLES[layout])
    data[place % len(data)] = byte
    try:
        content = read(bytes(data), parse_layout(layout))
        matches(read(SAMPLES[layout], parse_layout(layout)), content)
    except LayoutError as error:
        assert str(error)


# -- what is no number, and what is not the same number


def test_whole_numbers_and_other_arrays_are_carried_through() -> None:
    content = read(SAMPLES["npz"], AUTO)
    assert content.numbers.size == 9  # of a and b; steps is the program's
    with np.load(io.BytesIO(write(content, content.numbers * 2))) as back:
        assert back["steps"].tolist() == [3] and np.array_equal(back["a"], W * 2)
    content = read(SAMPLES["safetensors"], AUTO)
    assert content.numbers.size == 6 and write(content, content.numbers + 1)[-8:] == struct.pack("<q", 4)


def test_tensors_are_met_by_name_wherever_they_lie() -> None:
    a, b = W, W[0] + 5
    one, two = read(tensors(["a", "b"], a=a, b=b), AUTO), read(tensors(["b", "a"], a=a, b=b), AUTO)
    assert np.array_equal(one.numbers, two.numbers) and not matches(one, two).any()
    assert np.array_equal(read(npz(a=a, b=b), AUTO).numbers, read(npz(b=b, a=a), AUTO).numbers)


def test_bf16_is_rounded_to_the_nearest() -> None:
    data = tensors(["w"], w=np.array([0x3F80, 0xBF80], np.uint16))
    content = read(data, AUTO)
    assert content.numbers.tolist() == [1.0, -1.0]
    assert read(write(content, np.array([1.003, 1.005])), AUTO).numbers.tolist() == [1.0, 1.0078125]
    with pytest.raises(LayoutError, match="too large for the file's bf16"):
        write(content, np.array([1e39, 0]))


def test_minus_zero_and_the_digits_of_an_unchanged_number_stay() -> None:
    content = read(np.array([-0.0, 1.0]).tobytes(), parse_layout("f64"))
    assert write(content, np.array([0.0, 2.0])) == np.array([-0.0, 2.0]).tobytes()
    text = read(b"0.10000 0.2\n", AUTO)
    assert write(text, np.array([0.1, 0.3])) == b"0.10000 0.3\n"


def test_a_counter_may_change_and_is_named_as_the_programs_own() -> None:
    one, two = read(b"seen 100\n0.5 0.25\n", AUTO), read(b"seen 1200\n0.6 0.25\n", AUTO)
    assert matches(one, two).tolist() == [True, False, False]
    head, grown = read(b"100 3\nw 0.5\nv 0.25\n", AUTO), read(b"200 3\nw 0.6\nv 0.25\n", AUTO)
    assert matches(head, grown).tolist() == [True, False, False, False]


def test_a_weight_that_is_written_as_a_whole_number_by_chance_is_shared() -> None:
    one, two = read(b"0 0 1\n", AUTO), read(b"0.25 0 1.5\n", AUTO)
    assert not matches(one, two).any() and (two.numbers - one.numbers).tolist() == [0.25, 0.0, 0.5]
    assert not matches(two, one).any()


@pytest.mark.parametrize(
    ("given_", "taken", "why"),
    [
        (b"a 0.1\nb 0.2\n", b"b 0.2\na 0.1\n", "stands where"),
        (b"1 0.1\n2 0.2\n", b"2 0.2\n1 0.1\n", "a key in another order"),
        (b"1 0.1\n2 0.2\n3 0.3\n", b"2 0.2\n3 0.3\n4 0.4\n", "a key in another order"),
        (b"(0, 0.1) (1, 0.2) (2, 0.3)\n", b"(1, 0.2) (0, 0.1) (2, 0.3)\n", "a key in another order"),
        (b"w=(0, 0.1) (1, 0.2)\n", b"w=(1, 0.2) (0, 0.1)\n", "a key in another order"),
        (b"unit 3\n0.1 0.2\nunit 1\n0.3 0.4\n", b"unit 1\n0.3 0.4\nunit 3\n0.1 0.2\n", "a key in another order"),
        (b"3 -2 5\n", b"4 -2 5\n", "or a weight"),
        (b"a 0.1\n", b"a 0.1\nb 0.2\n", "it grows"),
        (b"a 0.1\nb 0.2\n", b"a 0.1\nb 0.", "stands where|not complete"),
        (npy(W), npy(W.T.copy()), "has become"),
        (npy(W), npy(W.astype("f8")), "has become"),
        (npz(a=W), npz(a=W, b=W), "1 parts have become 2"),
        (tensors(["a"], a=W), tensors(["b"], b=W), "'a' has become 'b'"),
        (torch_file(FloatStorage=W.ravel()), torch_file(names=("v",), FloatStorage=W.ravel()), "'w' has become 'v'"),
        (torch_file(FloatStorage=W.ravel()), torch_file(FloatStorage=W[0]), "has become"),
    ],
)
def test_what_may_be_another_number_is_refused(given_: bytes, taken: bytes, why: str) -> None:
    with pytest.raises(LayoutError, match=why):
        matches(read(given_, AUTO), read(taken, AUTO))


@pytest.mark.parametrize(("token", "kind"), [(b"nan", "text"), (b"-inf", "text"), (b"1e999", "text"), (np.array([np.nan, 1.0]).tobytes(), "f64")])
def test_what_is_not_finite_is_refused(token: bytes, kind: str) -> None:
    with pytest.raises(LayoutError, match="not finite, the first one number 0"):
        read(token + b"\n" if kind == "text" else token, parse_layout(kind))


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"", "it is empty"),
        (b"\xac\xed\x00\x05sr", "Java"),
        (b"\x04\x08[\x07", "Ruby Marshal"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00K\x01.", "pickle"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"X\n\x00\x00\x00\x03", "R object"),
        (npy(np.array([None, {}], dtype=object)), "pickle"),
        (npy(np.zeros(3, dtype=[("a", "f4"), ("b", "i4")])), "records"),
        (npy(np.arange(3)), "whole numbers stay"),
        (bytes(range(64)), "say it, e.g. FILE:f32"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name_with_advice(data: bytes, name: str) -> None:
    with pytest.raises(LayoutError, match=name):
        read(data, AUTO)


def test_other_zips_are_refused_by_name() -> None:
    for inner, name in (("archive/data.pkl", "PyTorch file"), ("hello.txt", "something else than arrays")):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr(inner, b"x")
        with pytest.raises(LayoutError, match=name):
            read(out.getvalue(), AUTO)


@pytest.mark.parametrize("sums_follow", [False, True])
def test_a_torch_file_is_changed_where_it_lies_with_its_sums(sums_follow: bool) -> None:
    data = torch_file(sums_follow, ("w", "n", "h"), FloatStorage=W.ravel(), LongStorage=np.array([7]), HalfStorage=W[0].astype("f2"))
    content = read(data, AUTO)
    assert content.numbers.tolist() == [*W.ravel().tolist(), *W[0].astype("f2").tolist()]
    new = write(content, content.numbers + 1)
    with zipfile.ZipFile(io.BytesIO(new)) as archive:  # it looks at each sum
        assert archive.testzip() is None and archive.read("archive/data/0") == (W + 1).tobytes()
        assert archive.read("archive/data/1") == np.array([7]).tobytes()
    assert len(new) == len(data) and sum(a != b for a, b in zip(new, data)) <= 6 * 4 + 3 * 2 + 4 * 4
    if sums_follow:
        end = new.index(b"PK\x07\x08", new.index((W + 1).tobytes()))
        assert new[end + 4 : end + 8] == struct.pack("<I", zlib.crc32((W + 1).tobytes()))


def test_a_damaged_storage_is_seen_by_its_sum() -> None:
    data = bytearray(torch_file(FloatStorage=W.ravel()))
    data[bytes(data).index(W.tobytes()) + 9] ^= 1
    with pytest.raises(LayoutError, match="damaged"):
        read(bytes(data), AUTO)


def test_layouts_as_they_are_written() -> None:
    assert split_file("a/b.txt") == ("a/b.txt", AUTO) and str(split_file("m:npz")[1]) == "npz"
    assert split_file("a:b/c") == ("a:b/c", AUTO)
    for wrong, why in (("f23", "f32"), ("f32,ofset=3", "ofset"), ("text,offset=3", "offset"), ("f32,offset=x", "offset=x"), ("f32,count=0", "count=0")):
        with pytest.raises(UsageError, match=why):
            parse_layout(wrong)


def test_numbers_from_the_end_stand_a_head_that_grows() -> None:
    layout = parse_layout("f32,offset=-24")
    one, two = read(b"seen 9\n" + W.tobytes(), layout), read(b"seen 10\n" + (W + 1).tobytes(), layout)
    assert not matches(one, two).any()
    with pytest.raises(LayoutError, match="has become"):
        matches(read(b"seen 9\n" + W.tobytes(), parse_layout("f32,offset=7")), read(b"seen 9\n" + W.tobytes() + b"1234", parse_layout("f32,offset=7")))


@pytest.mark.parametrize(
    ("given_", "taken"), [(b"0.5 0.25\n", b"0.5\t 0.25 \r\n"), (b"0.5 0.25", b"0.5 0.25\n"), (b" 0.5 0.25\nend", b"0.5 0.25\nend\n"), (b"w = 0.5\nv  0.25", b"w =  0.5 \n v 0.25")]
)
def test_how_many_blanks_are_between_is_no_matter(given_: bytes, taken: bytes) -> None:
    assert not matches(read(given_, AUTO), read(taken, AUTO)).any()


@pytest.mark.parametrize(("given_", "taken"), [(b"0.5 0.25\n", b"0.5\n0.25\n"), (b"0.5 0.25\n", b"0.5 0.25"), (b"a 0.5\n", b"a0 0.5\n"), (b"0.5 -0.25\n", b"0.5 - 0.25\n")])
def test_lines_and_words_are(given_: bytes, taken: bytes) -> None:
    with pytest.raises(LayoutError):
        matches(read(given_, AUTO), read(taken, AUTO))


LINES = parse_layout("lines")


def test_lines_are_met_by_key_in_any_order() -> None:
    """Also where keys are numbers, and blanks, and a line without a float is another order or count."""
    one = read(b"seen 10\nb 0.5 1\n17 0.25 2\na 3 4.5\n", LINES)
    two = read(b"a 3.5 4.5\n\nseen 20\n17  0.5\t2\nb 0.5 1.5\n", LINES)
    assert matches(one, two).tolist() == [False] * 6 + [True]  # 17, a, b, seen
    assert (two.numbers - one.numbers).tolist() == [0.25, 0, 0.5, 0, 0, 0.5, 10]
    assert write(two, one.numbers) == b"a 3.0 4.5\n\nseen 10.0\n17  0.25\t2\nb 0.5 1.0\n"


@pytest.mark.parametrize(
    ("taken", "why"),
    [
        (b"a 0.5 1\n", "1 of its keys is gone \\('b'\\)"),
        (b"a 0.5 1\nb 0.5\nc 1.5\n", "1 of its keys is new \\('c'\\)"),
        (b"a 0.5 1\nb 0.5 0.5\n", "key 'b' has other words"),
        (b"a 0.5 1\nb x 0.5\n", "key 'b' has other words"),
        (b"a 0.5 2\nb 0.5\n", "key 'a': a whole number beside floats"),
        (b"a 0.5 1\na 0.5\n", "two lines begin with the key 'a'"),
    ],
)
def test_lines_that_are_not_surely_the_same_are_refused(taken: bytes, why: str) -> None:
    with pytest.raises(LayoutError, match=why):
        matches(read(b"a 0.5 1\nb 0.5\n", LINES), read(taken, LINES))


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z0-9]{1,3}", fullmatch=True), FINITE, min_size=1, max_size=12), st.randoms())
def test_any_order_of_lines_is_the_same_model(model: dict[str, float], chance: Any) -> None:
    rows = [f"{key} {value!r}" for key, value in model.items()]
    one = read("\n".join(rows).encode(), LINES)
    chance.shuffle(rows)
    two = read("\n".join(rows).encode() + b"\n", LINES)
    assert np.array_equal(one.numbers, two.numbers) and not matches(one, two).any()
