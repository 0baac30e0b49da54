"""Who may speak under which name, call whom, and say what: the rules behind the keys.

Owns the roles.  Refuses to know a key: `runtime.keys` says whose a key is, and only then are these rules asked.

    master m0   server s0   agent a0   admin c0 (a command), u0 (a supervisor)       nodes and their role
    key "s0"    names s0.9f3a01c2 ...   key "admin", "admin-ann"   names of c and u  what a key may be called
"""

from __future__ import annotations

import re

from . import messages as m
from .messages import Message

MASTER, SERVER, AGENT, ADMIN = "master", "server", "agent", "admin"
LETTERS = {"m": MASTER, "s": SERVER, "a": AGENT, "c": ADMIN, "u": ADMIN}
_KEY_ID = re.compile(r"(?:[msa](?:0|[1-9][0-9]{0,3})|admin(?:-[A-Za-z0-9_]{1,32})?)\Z")
_NAME = re.compile(r"([msacu])[0-9]{1,4}(?:\.[0-9a-f]{8})?\Z")

#: Whose calls a node takes.  Agents and admins are called by nobody.
CALLERS: dict[str, frozenset[str]] = {
    MASTER: frozenset({MASTER, SERVER, AGENT, ADMIN}),
    SERVER: frozenset({SERVER, AGENT}),
}

_BY_ROLE: dict[str, tuple[type[Message], ...]] = {
    MASTER: (m.Registered, m.BeatAck, m.JobTold, m.AttachTold, m.MoreTold, m.MapTold, m.NotLeader, m.Done, m.AdminTold),
    SERVER: (
        m.Register, m.Beat, m.MapAsk, m.JobEnd, m.SeatAsk, m.SaveEnd, m.Retire,
        m.PushAck, m.Partial, m.LastTold, m.InitAck, m.Values, m.Scanned, m.Nack, m.Refuse,
        m.Standing, m.NextTold, m.Twins, m.ClaimTold, m.Close, m.CloseAck, m.Roster, m.RosterAck,
        m.Replicate, m.Held, m.Sync, m.CopyAsk, m.CopyTold, m.WriteAsk, m.Wrote,
    ),
    AGENT: (
        m.Register, m.Beat, m.JobAsk, m.AttachAsk, m.MoreAsk, m.MapAsk, m.JobEnd,
        m.Push, m.LastAsk, m.Init, m.Pull, m.PullAt, m.Scan,
        m.Join, m.Tick, m.Leave, m.StandingAsk, m.StopAsk, m.SaveAsk, m.NextAsk, m.ClaimAsk, m.InitDone,
    ),
    ADMIN: (m.Admin, m.NodeExit),
}  # fmt: skip
_MAY_SAY = {role: frozenset(types) for role, types in _BY_ROLE.items()}


def role_of_key(key_id: str) -> str:
    """
    >>> [role_of_key(id_) for id_ in ("m0", "s12", "a3", "admin", "admin-ann", "s007", "x1")]
    ['master', 'server', 'agent', 'admin', 'admin', '', '']
    """
    return "" if not _KEY_ID.match(key_id) else ADMIN if key_id.startswith(ADMIN) else LETTERS[key_id[0]]


def role_of_name(name: str) -> str:
    """Role that a node's name claims, "" for what is no name."""
    found = _NAME.match(name)
    return LETTERS[found[1]] if found else ""


def key_of_name(name: str) -> str:
    """Id of the key by which this node must prove itself; of admins any will do, see `may_be`."""
    return ADMIN if role_of_name(name) == ADMIN else name.partition(".")[0]


def is_concerned(name: str, keys: set[str]) -> bool:
    """Whether the node of this name may have proven itself by one of these keys."""
    return key_of_name(name) in keys or (role_of_name(name) == ADMIN and any(role_of_key(key) == ADMIN for key in keys))


def may_be(key_id: str, name: str) -> bool:
    """Whether the holder of this key may speak as `name`.

    >>> may_be("s0", "s0.9f3a01c2"), may_be("s0", "s1.9f3a01c2"), may_be("a0", "s0.9f3a01c2"), may_be("admin-ann", "u0.00000001")
    (True, False, False, True)
    """
    role = role_of_key(key_id)
    if not role or role != role_of_name(name):
        return False
    return role == ADMIN or name.partition(".")[0] == key_id


def may_call(called: str, caller: str) -> bool:
    """Whether a node of the caller's name has anything to call the other one for.

    >>> may_call("s0.9f3a01c2", "a0.00000001"), may_call("s0.9f3a01c2", "m0")
    (True, False)
    """
    return role_of_name(caller) in CALLERS.get(role_of_name(called), frozenset())


def may_say(name: str, message: Message) -> bool:
    """Whether this kind of message is one that a node of the name's role has to send."""
    return type(message) in _MAY_SAY.get(LETTERS.get(name[:1], ""), ())
