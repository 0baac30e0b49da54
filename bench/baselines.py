"""The bare mechanisms that plugml is measured against: a raw TCP echo and a zmq ping-pong, each in its own process.

`python -m bench.baselines tcp|zmq ADDRESS` is the far end; `TcpEcho` and `ZmqEcho` are the near ends.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

import numpy as np
import zmq


class Echo(Protocol):
    """Sends `nbytes` and waits until as many came back; `rounds` returns the time of each in microseconds."""

    def rounds(self, nbytes: int, count: int) -> list[float]: ...

    def close(self) -> None: ...


def _start(kind: str, address: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.baselines", kind, address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.ready = process.stdout.readline().strip()  # type: ignore[attr-defined]
    return process


class TcpEcho:
    """`sendall` and `recv_into` over loopback: the speed of the machine's sockets from Python."""

    def __init__(self) -> None:
        self.process = _start("tcp", "")
        port = int(self.process.ready)  # type: ignore[attr-defined]
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def rounds(self, nbytes: int, count: int) -> list[float]:
        data, answer = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
        times = []
        for _ in range(count):
            start = time.perf_counter()
            self.socket.sendall(nbytes.to_bytes(8, "little"))
            self.socket.sendall(data)
            _receive_all(self.socket, memoryview(answer))
            times.append((time.perf_counter() - start) * 1e6)
        return times

    def close(self) -> None:
        self.socket.close()
        self.process.wait(10)


class ZmqEcho:
    """A DEALER and a ROUTER over ipc, whole arrays, received without a copy."""

    def __init__(self, directory: Path) -> None:
        self.process = _start("zmq", f"ipc://{directory}/echo")
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.connect(f"ipc://{directory}/echo")

    def rounds(self, nbytes: int, count: int) -> list[float]:
        data = np.ones(nbytes, np.uint8)
        times = []
        for _ in range(count):
            start = time.perf_counter()
            self.socket.send(data, copy=False)
            self.socket.recv(copy=False)
            times.append((time.perf_counter() - start) * 1e6)
        return times

    def close(self) -> None:
        self.socket.send(b"")
        self.process.wait(10)
        self.socket.close(linger=0)


def _receive_all(stream: socket.socket, view: memoryview) -> bool:
    """Fill the view; False when the peer closed before the first byte."""
    got = 0
    while got < len(view):
        count = stream.recv_into(view[got:])
        if not count:
            return False
        got += count
    return True


def _serve_tcp() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    stream, _ = listener.accept()
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    length, data = bytearray(8), np.zeros(0, np.uint8)
    while _receive_all(stream, memoryview(length)):
        nbytes = int.from_bytes(length, "little")
        if data.nbytes != nbytes:
            data = np.zeros(nbytes, np.uint8)
        _receive_all(stream, memoryview(data))
        stream.sendall(data)


def _serve_zmq(address: str) -> None:
    socket_ = zmq.Context.instance().socket(zmq.ROUTER)
    socket_.bind(address)
    print("ready", flush=True)
    while True:
        identity, frame = socket_.recv_multipart(copy=False)
        if not len(frame):
            break
        socket_.send_multipart([identity, frame], copy=False)
    socket_.close(linger=0)


if __name__ == "__main__":
    _serve_tcp() if sys.argv[1] == "tcp" else _serve_zmq(sys.argv[2])
