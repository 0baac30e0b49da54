"""Multinomial logistic regression by full-batch gradient descent: a serial program with numpy.

    python trainer.py shard.txt 200 weights.txt [lr] [f32|f64]

Each line of the shard is `label pixel0 ... pixel63`, whole numbers, pixels from 0 to 16.  The model is w, a row of 64 pixels
and a bias for each digit, and starts from zeros.  At the end it lies in weights.txt, one number a line.

The lines marked "plugml" are all that was added to train it on many workers.  Without PLUGML_DIR they do nothing.
"""

import sys

import numpy as np

from plugml.client import attach  # plugml

shard, steps, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
real = np.float32 if "f32" in sys.argv[5:] else np.float64
lr = real(sys.argv[4] if len(sys.argv) > 4 else 1.0)

table = np.loadtxt(shard, ndmin=2)
x = np.column_stack([table[:, 1:] / 16, np.ones(len(table))]).astype(real)  # rows x 65
labels = table[:, 0].astype(int)
hot = np.eye(10, dtype=real)[labels]
w = np.zeros((10, 65), real)

plug = attach()  # plugml
plug.pull(w)  # plugml
for step in plug.clocks(steps):  # plugml: was range(steps)
    z = x @ w.T
    e = np.exp(z - z.max(axis=1, keepdims=True))
    p = e / e.sum(axis=1, keepdims=True)
    g = (p - hot).T @ x / real(len(x))
    if step % 50 == 49 or step == 0:
        print(f"step {step + 1} loss {-np.log(p[np.arange(len(x)), labels]).mean():.6f}", flush=True)
    if not plug.step(g, w, weight=len(x)):  # plugml
        w -= lr * g

np.savetxt(out, w.ravel(), fmt="%.17g")
plug.bye()  # plugml
