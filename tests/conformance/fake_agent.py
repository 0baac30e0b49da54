"""The scripted agent of `plugml.shm_protocol.conform`, under the name that tests use.

    python -m tests.conformance.fake_agent --table w=4 --fault restart@3:5 --report out.json -- ./trainer
"""

from __future__ import annotations

import sys

from plugml.shm_protocol.conform.agent import ScriptedAgent as FakeAgent
from plugml.shm_protocol.conform.play import main, run

__all__ = ["FakeAgent", "main", "run"]

if __name__ == "__main__":
    sys.exit(main())
