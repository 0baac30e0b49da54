"""Pushes i + 1 to the i-th of many keys, again and again, and reads them all: keys.py KEYS.txt PUSHES"""

import sys

import numpy as np

from plugml.client import attach

rows = np.loadtxt(sys.argv[1], dtype=np.uint64)
g = np.arange(1, len(rows) + 1, dtype=np.float64).reshape(-1, 1)
with attach() as plug:
    for push in range(int(sys.argv[2])):
        values = plug.step({"e": (rows, g)}, want={"e": rows})
        assert (values["e"] >= (push + 1) * g).all(), "an own push is missing"
