"""The smallest trainer: push a constant gradient, print what the model has become.

python hello.py STEPS [SECONDS] [CONSTANT]            alone: four numbers, lr 0.1
plugml run -n 2 --table w=4,lr=0.1 -- python hello.py 10
"""

import sys
import time

import numpy as np

from plugml.client import attach

steps, seconds, constant = (float(word) for word in (sys.argv[1:] + ["10", "0", "1"][len(sys.argv) - 1 :]))
plug = attach()
table = plug.tables[0] if plug else None
w = np.zeros(table.elements if table else 4, table.dtype if table else np.float32)
plug.pull(w)
for _clock in plug.clocks(int(steps)):
    time.sleep(seconds)
    g = np.full_like(w, constant)
    if not plug.step(g, w):
        w -= np.float32(0.1) * g
print(f"clock={plug.clock} w={','.join(f'{x:.9g}' for x in w[:8])}")
plug.bye()
