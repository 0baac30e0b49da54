"""`plugml` whose semaphores bear the mark of the test that started it: `python -m tests.marked run ...`.

A semaphore lies where those of every session lie, and nothing but its name can say whose it is (`tests/leaks.py`).
"""

from __future__ import annotations

import os

from plugml.cli.main import main
from plugml.shm_protocol import create
from tests.leaks import MARK, own_semaphore

if __name__ == "__main__":
    create.new_name = lambda: own_semaphore(os.environ[MARK])
    main()
