"""How a node's sockets are made: options, keys, the port that is free.

Owns the context.  Refuses to send or to read.  What goes between hosts is encrypted and proven both ways; a socket that
would listen or call over TCP without keys is refused, unless the user has said that the network is to be trusted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import zmq

from ..core.addresses import is_tcp, parse_tcp
from ..core.errors import KeysError, UsageError, WorldError
from ..core.limits import Limits
from ..wire.roles import SERVER, role_of_name
from .keys import Trust
from .line import Socket

IO_THREADS = 2
LINGER_MS = 1_000
HANDSHAKE_MS = 10_000
RECONNECT_MS = (100, 2_000)
LOCAL_RECONNECT_MS = (10, 500)  # a knock on a socket of this host costs microseconds
IPC_PATH_BYTES_MAX = 107
DOMAIN = b"plugml"  # of ZAP: named, and enforced, so that no key is let in without our asking
SEALED_BYTES = 64  # that encryption adds to a frame, and a little more
SOCKETS_A_PEER = 3  # one that speaks, and two ends of what watches its handshake

ADVICE = "make keys by `plugml keygen`, or say --insecure-trusted-network"


class Sockets:
    """Makes the sockets of one node."""

    def __init__(self, name: str, limits: Limits, trust: Trust) -> None:
        self.name = name
        self.context = zmq.Context(IO_THREADS)
        self.context.set(zmq.MAX_SOCKETS, SOCKETS_A_PEER * limits.nodes_max + 64)
        self._limits = limits
        self._trust = trust

    def dealer(self, node: str, endpoint: str) -> Socket:
        """Leads to `node`.  Raises `KeysError` if there is no key for it, `zmq.ZMQError` for an endpoint that is none."""
        socket = self._socket(zmq.DEALER)
        try:
            socket.set(zmq.IPV6, int("[" in endpoint))  # else a name is looked up as it is usual
            socket.set(zmq.IMMEDIATE, 1)  # nothing is queued for a peer that is away
            low, high = LOCAL_RECONNECT_MS if endpoint.startswith("ipc:") else RECONNECT_MS
            socket.set(zmq.RECONNECT_IVL, low)
            socket.set(zmq.RECONNECT_IVL_MAX, high)
            proven_caller(socket, self.name, node, endpoint, self._trust)
            socket.connect(endpoint)
        except BaseException:
            socket.close(linger=0)
            raise
        return socket

    def is_proven(self, node: str, endpoint: str) -> bool:
        """Whether who speaks at this endpoint has to prove that it is `node`."""
        return must_prove(node, endpoint, self._trust)

    def router(self) -> Socket:
        """For `listen`."""
        socket = self._socket(zmq.ROUTER)
        socket.set(zmq.ROUTER_MANDATORY, 1)
        socket.set(zmq.ROUTER_HANDOVER, 1)
        return socket

    def listen(self, router: Socket, endpoint: str) -> str:
        """Bind at the first port of the endpoint that is free; gives the endpoint as it is."""
        path = endpoint.removeprefix("ipc://")
        if path != endpoint and len(os.fsencode(path)) > IPC_PATH_BYTES_MAX:
            raise WorldError(
                f"{path} is longer than the {IPC_PATH_BYTES_MAX} bytes of a unix socket's path: "
                "take a shorter cluster name or --root"
            )
        if is_tcp(endpoint):
            router.set(zmq.IPV6, int("[" in endpoint))
            self._prepare_tcp(router, endpoint)
        trouble: zmq.ZMQError | None = None
        for one in _each(endpoint):
            try:
                router.bind(one)
            except zmq.ZMQError as error:
                trouble = error
                if error.errno != zmq.EADDRINUSE:
                    break
            else:
                return router.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        assert trouble is not None
        raise WorldError(f"cannot listen on {endpoint}: {trouble.strerror}") from trouble

    def is_guarded(self, endpoint: str) -> bool:
        """Whether callers at our own endpoint have to prove who they are."""
        return self.is_proven(self.name, endpoint)

    def _prepare_tcp(self, router: Socket, endpoint: str) -> None:
        keys = self._trust.keys
        if keys is None:
            if not self._trust.insecure:
                raise KeysError(f"{self.name} would listen at {endpoint}, where anybody on the network can speak to it: {ADVICE}")
            return
        if self.is_guarded(endpoint):
            router.set(zmq.CURVE_SERVER, 1)
            router.set(zmq.CURVE_SECRETKEY, keys.pair.secret.encode())
            router.set(zmq.ZAP_DOMAIN, DOMAIN)
            router.set(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def _socket(self, kind: int) -> Socket:
        socket = self.context.socket(kind)
        socket.set(zmq.IDENTITY, self.name.encode())
        socket.set(zmq.SNDHWM, 0)  # zmq drops silently at its own mark: the bytes are bounded by our Queue
        socket.set(zmq.RCVHWM, 0)
        socket.set(zmq.LINGER, LINGER_MS)
        socket.set(zmq.MAXMSGSIZE, self._limits.frame_bytes_max + (SEALED_BYTES if self._trust.keys is not None else 0))
        socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.set(zmq.TCP_KEEPALIVE, 1)
        socket.set(zmq.TCP_KEEPALIVE_IDLE, 10)
        socket.set(zmq.TCP_KEEPALIVE_INTVL, 5)
        socket.set(zmq.TCP_KEEPALIVE_CNT, 3)
        return socket


def must_prove(node: str, endpoint: str, trust: Trust) -> bool:
    return is_tcp(endpoint) and trust.keys is not None and not (trust.plain_data and role_of_name(node) == SERVER)


def proven_caller(socket: Socket, name: str, node: str, endpoint: str, trust: Trust) -> None:
    """Before the socket of node `name` connects to `node`: give it the keys that are needed there.  Raises `KeysError`."""
    keys = trust.keys
    if is_tcp(endpoint) and keys is None and not trust.insecure:
        raise KeysError(f"{node} is called over TCP, and this node has no keys: {ADVICE}")
    if keys is None or not must_prove(node, endpoint, trust):
        return
    public = keys.public_of(node)
    if not public:
        raise KeysError(f"there is no key of {node} in {keys.directory}: make it by `plugml keygen`, and copy the roster here")
    call_with_keys(socket, name, keys.pair.public, keys.pair.secret, public)


def call_with_keys(socket: Socket, name: str, public: str, secret: str, theirs: str) -> None:
    """From its next connect on the socket proves who we are, and speaks to the holder of the key `theirs` alone.

    It calls itself by a name that nobody can guess: a router gives the place of a name to whoever calls by it last, and
    sees the key only later.
    """
    socket.set(zmq.IDENTITY, f"{name}/{os.urandom(16).hex()}".encode())
    socket.set(zmq.CURVE_PUBLICKEY, public.encode())
    socket.set(zmq.CURVE_SECRETKEY, secret.encode())
    socket.set(zmq.CURVE_SERVERKEY, theirs.encode())


def _each(endpoint: str) -> Iterator[str]:
    """The endpoint with each of its ports."""
    if not is_tcp(endpoint):
        yield endpoint
        return
    try:
        address = parse_tcp(endpoint)
    except UsageError as error:
        raise WorldError(f"cannot listen on {endpoint}: {error}") from error
    for port in range(address.first, address.last + 1):
        yield address._replace(first=port, last=port).endpoint
