"""Plug a serial Python program into its channel: `from plugml.client import attach`.

Needs numpy and nothing else of plugml: the directory may be copied beside a program and imported under any name.
Without `PLUGML_DIR` in the environment the program runs alone and every call is a no-op that says so.

    from plugml.client import attach

    plug = attach()
    plug.pull(w)                                # the job's values of now
    for clock in plug.clocks(150):
        g = gradient(w)
        if not plug.step(g, w, weight=len(x)):  # False: we are alone, do our own update
            w -= lr * g
    plug.bye()
"""

from .client import Client, attach
from .errors import ChannelError, Code
from .files import Piece
from .rows import SparseTable
from .tables import Table

__all__ = ["ChannelError", "Client", "Code", "Piece", "SparseTable", "Table", "attach"]
