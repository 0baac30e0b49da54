"""Cut scikit-learn's digits into shards for four workers, the whole training set, and the held-out images.

    python prepare.py DIRECTORY

Writes `shard0.txt` to `shard3.txt`, `train.txt` (all shards one after the other) and `test.txt`.  A line is
`label pixel0 ... pixel63`.  The split is always the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

#: Unequal on purpose: a push counts as many examples as its shard has.  The last one is for the shell, which is slow.
SHARD_ROWS = (560, 380, 217, 100)


def prepare(directory: Path) -> tuple[Path, ...]:
    """Write all files into `directory`; return the shards' paths."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    rows = np.column_stack([digits.target, digits.data]).astype(np.int64)
    train, test = train_test_split(rows, test_size=0.3, random_state=0, stratify=digits.target)
    if sum(SHARD_ROWS) != len(train):
        raise SystemExit(f"prepare.py: {len(train)} rows to train on, but the shards have {sum(SHARD_ROWS)}")

    directory.mkdir(parents=True, exist_ok=True)
    np.savetxt(directory / "train.txt", train, fmt="%d")
    np.savetxt(directory / "test.txt", test, fmt="%d")
    shards = []
    for number, part in enumerate(np.split(train, np.cumsum(SHARD_ROWS)[:-1])):
        path = directory / f"shard{number}.txt"
        np.savetxt(path, part, fmt="%d")
        shards.append(path)
    return tuple(shards)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python prepare.py DIRECTORY")
    for path in prepare(Path(sys.argv[1])):
        print(path)
