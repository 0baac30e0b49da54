"""Does what the file in PLUGML_OPS says, with the Python client, and prints the outcome of each.  See docs/conform.md."""

import os
import signal
import sys

import numpy as np

from plugml.client import ChannelError, attach

plug = attach()
table = plug.tables[0] if plug.tables else None
n, dtype = (table.elements, table.dtype) if table else (4, np.dtype(float))
w = np.full(n, -1, dtype)
failed = False


def tell(op, outcome, code):
    shown = ",".join(f"{number:.9g}" for number in w[:6].tolist())
    print(f"{op} {outcome} {code} clock={plug.clock} done={int(plug.stopped or failed)} w={shown}", flush=True)


def do_one(op):
    global failed
    verb, constant, weight = [*op.split(":"), *("", "0", "1")[op.count(":") + 1 :]]
    g = (float(constant) + np.arange(n)).astype(dtype)
    stopped, code = plug.stopped, "OK"
    outcome = "1" if plug else "0"
    try:
        if verb == "step":
            plug.step(g, w, weight=float(weight))
        elif verb == "push":
            plug.push(g, weight=float(weight))
        elif verb == "pull":
            plug.pull(w)
        elif verb == "pushpull":
            plug.pushpull(g, w, weight=float(weight))
        elif verb == "init":
            if plug:
                w[:] = g
            plug.init(w)
        elif verb == "tick":
            plug.tick()
        elif verb == "ping":
            plug.ping()
        else:
            print(verb, "-", flush=True)
            return
        if stopped and verb in ("step", "push", "pushpull", "tick"):
            outcome, code = "S", "STOP"
        failed = False
    except ChannelError as error:
        print(f"clock {plug.clock}: {error}", file=sys.stderr)
        outcome, code, failed = "E", error.code.name, True
    tell(op, outcome, code)


for op in open(os.environ["PLUGML_OPS"]).read().split():
    if op == "bye":
        break
    if op == "who":
        print(f"who plugged={int(plug.plugged)} main={int(plug.main())} worker={plug.worker} of={plug.workers} clock={plug.clock}", flush=True)
    elif op == "fork":
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            do_one("step:1")
            plug.bye()
            os._exit(0)
        os.waitpid(child, 0)
    elif op == "close":
        os.closerange(3, 256)
    elif op.startswith("die:"):
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        do_one(op)
if failed:
    plug.close()
    sys.exit(1)
plug.bye()
