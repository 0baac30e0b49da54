"""Formats that hold programs or packed bytes, known by their first bytes, with what their user can do instead."""

from __future__ import annotations

_ELSE = "have the program write its numbers as text, .npy, .npz, safetensors or raw floats"
#: First bytes, name, advice.
KNOWN: tuple[tuple[bytes, str, str], ...] = (
    (b"\xac\xed\x00\x05", "a serialised Java object", f"{_ELSE}, e.g. with DataOutputStream.writeDouble"),
    (b"\x04\x08", "a Ruby Marshal dump", f"{_ELSE}, e.g. File.binwrite(path, w.pack('E*'))"),
    (b"\x1f\x8b", "gzip'd (R's .rds and .RData are, too)", "write it unpacked; in R: writeBin(w, path), or write.table"),
    (b"RDX", "an R image", "in R: writeBin(w, path), or write.table"),
    (b"X\n\x00\x00\x00", "an R object (.rds)", "in R: writeBin(w, path), or write.table"),
    (b"A\n", "an R object as text (.rds)", "in R: writeBin(w, path), or write.table"),
    (b"\x89HDF\r\n", "HDF5", f"{_ELSE}; Keras: model.save_weights is HDF5, too, np.savez(path, *model.get_weights()) is not"),
    (b"BZh", "packed by bzip2", "write it unpacked"),
    (b"\xfd7zXZ", "packed by xz", "write it unpacked"),
    (b"\x28\xb5\x2f\xfd", "packed by zstd", "write it unpacked"),
    (b"SQLite format 3", "an SQLite database", _ELSE),
    (b"MATLAB 5.0 MAT-file", "a MATLAB file", "in MATLAB or Octave: fwrite(f, w, 'double'), or save -ascii"),
    (b"Octave-1-", "an Octave binary file", "in Octave: save -text, or fwrite(f, w, 'double')"),
)


def opaque(data: bytes) -> str:
    """A sentence that names the format and what to do, "" for what may be read.

    >>> opaque(bytes([0x80, 4, 0x95])).partition(":")[0]
    'it is a Python pickle'
    """
    if data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") and data.rstrip(b"\n")[-1:] in (b".", b"\x95"):
        return f"it is a Python pickle: that is a program, which plugml does not run; {_ELSE}, e.g. np.savez(path, w=w)"
    for head, name, advice in KNOWN:
        if data.startswith(head):
            return f"it is {name}: plugml does not look into it; {advice}"
    return ""
