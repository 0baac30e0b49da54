"""The owner of a standing cluster: state of its own, the usual root, and commands that run beside each other."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path


class Owner:
    """`cluster` is a name that nobody else has; `directory` is where every command starts."""

    def __init__(self, directory: Path, word: str, hang_s: float) -> None:
        self.directory = directory
        self.cluster = f"{word}-{os.getpid()}-{secrets.token_hex(4)}"
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("PLUGML_") or name == "PLUGML_TEST_MARK"}
        self.environ |= {"XDG_STATE_HOME": str(directory / "state"), "PLUGML_CHECK": "1"}
        self.started: list[subprocess.Popen[str]] = []
        self._hang_s = hang_s

    def start(self, *words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "plugml", *words]
        made = subprocess.Popen(argv, cwd=self.directory, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(made)
        return made

    def ok(self, *words: str) -> str:
        return self.ended(self.start(*words))

    def ended(self, process: subprocess.Popen[str], code: int = 0) -> str:
        out, err = process.communicate(timeout=self._hang_s)
        assert process.returncode == code, f"exit code {process.returncode}:\n{out}\n{err}"
        return out + err

    def end(self) -> None:
        """What a test that failed has left running."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.communicate()
