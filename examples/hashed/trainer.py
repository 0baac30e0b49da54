"""Logistic regression with the hashing trick, by minibatches: a serial program whose model has a weight for each feature.

    python trainer.py part.txt PASSES weights.txt [LR]

Each line is `label feature feature ...`, and a feature is named by the 64-bit FNV-1a hash of its text.  weights.txt has a
line `hash weight` for each feature of the file.

The lines marked "plugml" are all that was added to train it on many workers, each with a file of its own:

    plugml run -n 4 --table w=sparse:f32,width=1,index=u64,lr=2 --combine sum -- python trainer.py 'part{worker}.txt' 3 'weights{worker}.txt'
"""

import sys

import numpy as np

from plugml.client import attach  # plugml

BATCH = 50


def hash_of(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def read_lines(path: str) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Labels, the feature numbers of each line, and the key of each feature number."""
    hashes: dict[str, int] = {}
    labels, lines = [], []
    with open(path) as file:
        for words in map(str.split, file):
            labels.append(int(words[0]))
            lines.append([hashes.setdefault(word, hash_of(word)) for word in words[1:]])
    keys = np.array(sorted(set(hashes.values())), np.uint64)
    return np.array(labels, np.float32), [np.searchsorted(keys, np.array(line, np.uint64)) for line in lines], keys


def main(path: str, passes: int, out: str, lr: float) -> None:
    labels, lines, keys = read_lines(path)
    w = np.zeros(len(keys), np.float32)
    batches = -(-len(lines) // BATCH)
    loss = 0.0
    plug = attach()  # plugml
    for step in plug.clocks(passes * batches):  # plugml: was in range(...)
        start = step % batches * BATCH
        some, y = lines[start : start + BATCH], labels[start : start + BATCH]
        found, of_line = np.unique(np.concatenate(some), return_inverse=True)
        came = plug.pull(want={"w": keys[found]})  # plugml
        if came:  # plugml
            w[found] = came["w"][:, 0]  # plugml
        owner = np.repeat(np.arange(len(some)), [len(line) for line in some])
        z = np.bincount(owner, w[found][of_line])
        p = 1 / (1 + np.exp(-z))
        loss = (loss if start else 0.0) - float(np.log(np.where(y == 1, p, 1 - p)).sum())
        g = np.bincount(of_line, ((p - y) / len(some))[owner]).astype(np.float32)
        if not plug.step({"w": (keys[found], g)}):  # plugml
            w[found] -= np.float32(lr) * g
        if start + BATCH >= len(lines):
            print(f"pass {step // batches + 1} loss {loss / len(lines):.6f}", flush=True)
    for at in range(0, len(keys), 1024):  # plugml
        came = plug.pull(want={"w": keys[at : at + 1024]})  # plugml
        if came:  # plugml
            w[at : at + 1024] = came["w"][:, 0]  # plugml
    with open(out, "w") as file:
        file.writelines(f"{key} {value:.9g}\n" for key, value in zip(keys.tolist(), w.tolist()))
    plug.bye()  # plugml


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit("usage: trainer.py FILE PASSES WEIGHTS [LR]; see the top of trainer.py")
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4]) if len(sys.argv) > 4 else 2.0)
