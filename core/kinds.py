"""The words that describe a table: kinds of numbers and row names, first values, optimizers with their settings."""

from __future__ import annotations

from typing import Any

import numpy as np

DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype("<f4"),
    "f64": np.dtype("<f8"),
    "i64": np.dtype("<i8"),
}
#: What servers may keep: a program's kinds and one that few languages have.  The agent converts between the two.
STORAGES: dict[str, np.dtype[Any]] = {**DTYPES, "f16": np.dtype("<f2")}
#: One byte on the wire and in the ctl page.
DTYPE_CODES: dict[str, int] = {"f32": 1, "f64": 2, "i64": 3, "f16": 4}
DTYPE_NAMES: dict[int, str] = {code: name for name, code in DTYPE_CODES.items()}
#: Kinds of row numbers and their bytes in `gidx` and `want`; strings stand in `gkey` and `wkey`, and travel as hashes.
INDEXES: dict[str, int] = {"u32": 4, "u64": 8, "str": 0}

INITS = ("zeros", "normal", "uniform", "file", "program")
#: Settings of each kind of first values, with their defaults (`path` is text, the others are numbers).
INIT_SETTINGS: dict[str, dict[str, float | str]] = {
    "zeros": {},
    "normal": {"scale": 0.01},
    "uniform": {"low": -0.01, "high": 0.01},
    "file": {"path": ""},
    "program": {},
}
COMBINES = ("mean", "sum")
#: Parameters that each optimizer takes, with their defaults (None = must be given).
OPTIMIZERS: dict[str, dict[str, float | None]] = {
    "sgd": {"lr": 0.01},
    "momentum": {"lr": 0.01, "beta": 0.9},
    "nesterov": {"lr": 0.01, "beta": 0.9},
    "adagrad": {"lr": 0.01, "eps": 1e-10},
    "rmsprop": {"lr": 0.01, "beta": 0.99, "eps": 1e-8},
    "adam": {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    "adamw": {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
    "add": {},
    "assign": {},
}
#: Arrays of state, each as long as the values, that an optimizer keeps beside them; none if it is not here.
STATE_ARRAYS = {"momentum": 1, "nesterov": 1, "adagrad": 1, "rmsprop": 1, "adam": 2, "adamw": 2}
#: Optimizers whose step the program has made, and which therefore fit whole numbers.
WHOLE_OPTIMIZERS = ("add", "assign")
