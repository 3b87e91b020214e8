"""A client of Lockkeeper's daemon, from docs/protocol.md alone. Python 3.11, nothing but its standard library."""

import collections
import itertools
import os
import socket
import struct
import sys

HELLO, REQUEST, RELEASE, ABORT, FORCE_RELEASE, QUERY = range(6)
WELCOME, GRANTED, QUEUED, UNAVAILABLE, RELEASED, ABORTED, BROKEN, REFUSED, SNAPSHOT, PONG, GOODBYE, DEADLOCKED = range(12)
WORDS = "welcome granted queued unavailable released aborted broken refused snapshot pong goodbye deadlocked".split()
FLAGS = {"if-available": 1, "steal": 2, "refuse-deadlock": 4}


def pack(value):
    """The shortest MessagePack form of a value."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            return bytes([value]) if value < 128 else _sized(value, ((0xCC, "B"), (0xCD, "H"), (0xCE, "I"), (0xCF, "Q")))
        case bytes():
            return _sized(len(value), ((0xC4, "B"), (0xC5, "H"), (0xC6, "I"))) + value
        case str():
            data = value.encode()
            forms = ((0xD9, "B"), (0xDA, "H"), (0xDB, "I"))
            return (bytes([0xA0 | len(data)]) if len(data) < 32 else _sized(len(data), forms)) + data
        case list() | tuple():
            size = len(value)
            head = bytes([0x90 | size]) if size < 16 else _sized(size, ((0xDC, "H"), (0xDD, "I")))
            return head + b"".join(map(pack, value))
    raise TypeError(f"not for the wire: {value!r}")


def _sized(number, forms):
    for marker, form in forms:
        if number < 256 ** struct.calcsize(form):
            return bytes([marker]) + struct.pack(">" + form, number)
    raise OverflowError(number)


def unpack(data):
    """The value of a whole message."""
    value, end = _unpack(data, 0)
    if end != len(data):
        raise ValueError("bytes after the end")
    return value


def _unpack(data, at):
    first, at = data[at], at + 1
    plain = {0xC0: None, 0xC2: False, 0xC3: True}
    if first < 0x80 or first in plain:
        return plain.get(first, first), at
    if 0x90 <= first < 0xA0:
        return _array(data, at, first & 15)
    if 0xA0 <= first < 0xC0:
        return data[at:at + (first & 31)].decode(), at + (first & 31)
    form = {0xC4: "B", 0xC5: "H", 0xC6: "I", 0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q",
            0xD9: "B", 0xDA: "H", 0xDB: "I", 0xDC: "H", 0xDD: "I"}[first]
    (number,), at = struct.unpack_from(">" + form, data, at), at + struct.calcsize(form)
    if first >= 0xDC:
        return _array(data, at, number)
    if first >= 0xD9:
        return data[at:at + number].decode(), at + number
    return (number, at) if first >= 0xCC else (data[at:at + number], at + number)


def _array(data, at, size):
    values = []
    for _ in range(size):
        value, at = _unpack(data, at)
        values.append(value)
    return values, at


def default_path():
    """This user's own socket."""
    if (url := os.environ.get("LOCKKEEPER_URL", "")).startswith("unix:"):
        return url.removeprefix("unix:")
    runtime, temp = os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("TMPDIR") or "/tmp"
    return f"{runtime}/lockkeeper/daemon.sock" if runtime else f"{temp}/lockkeeper-{os.geteuid()}/daemon.sock"


class Gone(Exception):
    """The daemon said goodbye, or nothing."""


class Session:
    """Locks of this process. They are released when the session is closed, or the process ends."""

    def __init__(self, path=None, bucket="default"):
        self._stream = socket.socket(socket.AF_UNIX)
        self._stream.connect(path or default_path())
        self._rids = itertools.count(1)
        self._heard = collections.defaultdict(collections.deque)
        self._send([HELLO, 1, bucket, None, None])
        _, _, self.client_id, self.secret, self.ttl, _ = self._receive()

    def close(self):
        self._stream.close()

    def request(self, names, *flags, shared=False, info=None):
        """Asks for a lock on all of `names`. Its number; `answer` tells what becomes of it."""
        scope = [[wtf8(name), shared] for name in ([names] if isinstance(names, str) else names)]
        return self._ask(REQUEST, scope, sum(FLAGS[flag] for flag in flags), None, info)

    def release(self, rid):
        return self._end(RELEASED, RELEASE, rid)

    def abort(self, rid):
        return self._end(ABORTED, ABORT, rid, False)

    def query(self, name=None):
        """Who holds and who waits: [name, shared, client id, ticket, token, info, milliseconds, ...] each."""
        _, _, entries, *_ = self.answer(self._ask(QUERY, None if name is None else wtf8(name), False))
        return entries

    def answer(self, rid):
        """The next message about a request or question."""
        while not self._heard[rid]:
            message = self._receive()
            if message[0] != PONG:
                self._heard[message[1]].append(message)
        return self._heard[rid].popleft()

    def wait(self, rid):
        """The first answer that is not "it waits"."""
        while (message := self.answer(rid))[0] == QUEUED:
            pass
        return message

    def _ask(self, kind, *rest):
        rid = next(self._rids)
        self._send([kind, rid, *rest])
        return rid

    def _end(self, done, kind, rid, *rest):
        self._send([kind, rid, *rest])
        # A grant, or the news that the lock was broken, may be on its way.
        while self.answer(rid)[0] != done:
            pass
        self._heard.pop(rid)

    def _send(self, message):
        data = pack(message)
        self._stream.sendall(struct.pack(">I", len(data)) + data)

    def _receive(self):
        (length,) = struct.unpack(">I", self._exactly(4))
        message = unpack(self._exactly(length))
        if message[0] == GOODBYE:
            raise Gone(*message[1:])
        return message

    def _exactly(self, count):
        data = b""
        while len(data) < count:
            more = self._stream.recv(count - len(data))
            if not more:
                raise Gone("the connection has ended")
            data += more
        return data


def wtf8(name):
    """Half a surrogate pair, which UTF-8 has no place for, is three bytes here."""
    return name.encode("utf-8", "surrogatepass")


def vectors(path):
    """Checks this file's MessagePack against the golden vectors. How many there are."""
    lines = [line.split(" | ") for line in open(path, encoding="utf-8") if line[:1] not in "#\n"]
    words = {"nil": None, "true": True, "false": False, "__builtins__": {}}
    for _, title, elements, digits in lines:
        value, data = eval(elements, words), bytes.fromhex(digits)
        assert pack(value) == data and unpack(data) == value, title
    return len(lines)


def count(session, name, path, rounds):
    """Adds to a number in a file, which comes out right only if nobody else does so at the same time."""
    for _ in range(rounds):
        rid = session.request(name)
        assert session.wait(rid)[0] == GRANTED
        with open(path) as file:
            number = int(file.read())
        with open(path, "w") as file:
            file.write(str(number + 1))
        session.release(rid)


def main(path, *, say=lambda *words: print(*words, flush=True)):
    """Commands on standard input, one a line, each answered with a line."""
    session = Session(path)
    say("welcome", session.client_id)
    for line in sys.stdin:
        match line.split():
            case ["request", name, *flags]:
                message = session.answer(session.request(name, *flags))
                say(WORDS[message[0]], *message[1:3])
            case ["wait", rid]:
                message = session.wait(int(rid))
                say(WORDS[message[0]], *message[1:3])
            case ["release" | "abort" as end, rid]:
                getattr(session, end)(int(rid))
                say("done", rid)
            case ["query", *name]:
                entries = session.query(*name)
                say(*(f"{entry[0].decode()}:{entry[2]}:{'waiting' if entry[4] is None else 'held'}" for entry in entries))
            case ["count", name, file, rounds]:
                count(session, name, file, int(rounds))
                say("done", rounds)


if __name__ == "__main__":
    if sys.argv[1] == "vectors":
        print(vectors(sys.argv[2]))
    else:
        main(sys.argv[1])
