"""A client of a Lockkeeper server, from docs/protocol.md alone. Python 3.11, nothing but its standard library.

Its session lives by the descriptor that the server passes: no pings, and the locks end when the process does. After a lost
connection, or a restart of the server, it resumes the session and keeps its locks. Not for use by several threads.
"""

import collections
import getpass
import os
import socket
import struct
import subprocess
import sys
import time

HELLO, REQUEST, RELEASE, FORCE_RELEASE, END_SESSION, QUERY, PING, CONFIRM, BYE = range(9)
(WELCOME, LISTED, SYNCED, GRANTED, QUEUED, UNAVAILABLE, RELEASED, BROKEN, OUTCOME, REFUSED, DEADLOCKED, SNAPSHOT, PONG,
 FIFO, CONFIRMED, GOODBYE) = range(16)
WORDS = ("welcome listed synced granted queued unavailable released broken outcome refused deadlocked snapshot pong "
         "fifo confirmed goodbye").split()
FLAGS = {"if-available": 1, "steal": 2, "refuse-deadlock": 4}
QUIET, LOST = 1, 1
CAN_RECEIVE_DESCRIPTOR = 1
TEMPORARY = 32  # Codes from here on: try again later.


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
    # The rule has several cases, and stands in one place: the program.
    return subprocess.run(["lockkeeper", "status", "--socket"], check=True, capture_output=True, text=True).stdout.strip()


class Gone(Exception):
    """The server refuses, or the session is lost with all its locks."""


class Disconnected(Exception):
    """The connection has ended. The session has not."""


class Asked:
    """A request or question whose last answer has not come."""

    def __init__(self, kind, rest):
        self.kind, self.rest = kind, rest
        self.rid = None
        self.state = "asked"  # then "waiting", "held", "ending"


class Session:
    """Locks of this process. They are released when the session is closed, or the process ends."""

    def __init__(self, path=None, bucket="default"):
        self._path, self._bucket = path or default_path(), bucket
        self._stream = self._fifo = self._identity = None
        self._hello = self._ack = self._last_rid = self._last_key = 0
        self._asked = {}  # By key: a number that stays when the number on the wire changes.
        self._keys = {}  # By number on the wire.
        self._heard = collections.defaultdict(collections.deque)
        self._connect()

    @property
    def client_id(self):
        return self._identity[0]

    def close(self):
        self._say(BYE)
        # The server closes the connection without a word, unless it refuses the message.
        try:
            while True:
                self._receive()
        except Disconnected:
            pass
        self._stream.close()
        os.close(self._fifo)

    def request(self, names, *flags, shared=False, info=None):
        """Asks for a lock on all of `names`. Its key; `answer` tells what becomes of it."""
        scope = [[wtf8(name), shared] for name in ([names] if isinstance(names, str) else names)]
        return self._ask(REQUEST, scope, sum(FLAGS[flag] for flag in flags), None, info)

    def release(self, key):
        """Releases a lock, or aborts a request. False if it was broken before."""
        if (asked := self._asked.get(key)) is None:
            return False
        asked.state = "ending"
        self._say(RELEASE, asked.rid, 0)
        # A grant, or the news that the lock was broken, may be on its way.
        while (kind := self.answer(key)[0]) not in (RELEASED, BROKEN):
            pass
        return kind == RELEASED

    def query(self, name=None):
        """Who holds and who waits: [name, shared, client id, arrival, token, info, milliseconds, ...] each."""
        key, entries, more = self._ask(QUERY, None if name is None else wtf8(name), False), [], True
        while more:
            _, _, part, _, _, more, *_ = self.answer(key)
            entries += part
        # The parts of a long answer come in any order.
        return sorted(entries, key=lambda entry: (entry[4] is None, entry[3]))

    def answer(self, key):
        """The next message about a request or question: its kind, the key, and the rest of it."""
        while not self._heard[key]:
            try:
                self._dispatch(self._receive())
            except Disconnected:
                self._connect()
        message = self._heard[key].popleft()
        if key not in self._asked and not self._heard[key]:
            del self._heard[key]
        return message

    def wait(self, key):
        """The first answer that is not "it waits"."""
        while (message := self.answer(key))[0] == QUEUED:
            pass
        return message

    def _ask(self, kind, *rest):
        self._last_key += 1
        self._asked[self._last_key] = Asked(kind, rest)
        self._send_new(self._last_key)
        return self._last_key

    def _send_new(self, key):
        self._last_rid += 1
        self._asked[key].rid = self._last_rid
        self._keys[self._last_rid] = key
        self._send_again(key)

    def _send_again(self, key):
        asked = self._asked[key]
        self._say(asked.kind, asked.rid, *asked.rest)

    def _dispatch(self, message):
        """Takes note of what became of a request or question."""
        kind = message[0]
        if kind in (BROKEN, OUTCOME):
            self._ack = max(self._ack, message.pop(1))
        if kind < GRANTED or kind > SNAPSHOT or message[1] not in self._keys:
            return
        key = self._keys[message[1]]
        asked, message[1] = self._asked[key], key
        if kind == GRANTED and asked.state in ("asked", "waiting"):
            asked.state = "held"
        elif kind == QUEUED and asked.state == "asked":
            asked.state = "waiting"
        elif kind not in (GRANTED, QUEUED) and not (kind == SNAPSHOT and message[5]):
            del self._keys[asked.rid], self._asked[key]
        self._heard[key].append(message)

    def _connect(self):
        """Opens the session, or resumes it, for as long as it takes: it lives as long as this process does."""
        pause = 0.02
        while True:
            try:
                return self._open()
            except (Disconnected, OSError):
                if self._identity is None:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 2)

    def _open(self):
        if self._stream:
            self._stream.close()
        self._stream = socket.socket(socket.AF_UNIX)
        self._stream.connect(self._path)
        self._received = None
        self._hello += 1
        owner = f"{getpass.getuser()}@{socket.gethostname()} {os.path.basename(sys.argv[0])} {os.getpid()}"
        self._send(HELLO, 2, CAN_RECEIVE_DESCRIPTOR, self._hello, self._bucket, self._identity, self._ack, None, None, owner)
        _, _, _, number, client_id, secret, ttl, resumed, last_rid, *_ = self._receive()
        if self._identity and not resumed:
            raise Gone("the session is lost, with all its locks")
        self._identity = [client_id, secret]
        listed = {}
        while (message := self._receive())[0] != SYNCED:
            if message[0] == LISTED:
                listed |= {rid: (arrival, token) for rid, arrival, token in message[1]}
            else:
                self._dispatch(message)
        self._ack = max(self._ack, number)
        self._compare(listed, last_rid)
        if ttl > 0:
            self._live_by_descriptor()

    def _compare(self, listed, last_rid):
        """What the server has, beside what this side wants."""
        unsent, again = [], []
        for rid, key in sorted(self._keys.items()):
            asked = self._asked[key]
            if rid in listed:
                arrival, token = listed.pop(rid)
                if asked.state == "ending":
                    self._say(RELEASE, rid, 0)
                elif token is not None and asked.state != "held":
                    self._dispatch([GRANTED, rid, token])
                elif asked.state == "asked":
                    self._dispatch([QUEUED, rid, arrival])
            elif asked.state == "ending":
                self._dispatch([RELEASED, rid])
            elif asked.state != "asked":
                self._dispatch([BROKEN, 0, rid, LOST, None])
            elif rid > last_rid:
                unsent.append(key)
            else:
                del self._keys[rid]
                again.append(key)
        for rid in listed:
            self._say(RELEASE, rid, QUIET)
        self._last_rid = max(self._last_rid, last_rid)
        # Numbers grow: first the old ones that the server has not seen, then new ones.
        for key in unsent:
            self._heard[key].clear()
            self._send_again(key)
        for key in again:
            self._heard[key].clear()
            self._send_new(key)

    def _live_by_descriptor(self):
        """Confirms the descriptor that comes with `Fifo`. From then on there is no lease, and no need for pings."""
        self._say(PING, 1)
        while (message := self._receive())[0] != PONG:
            self._dispatch(message)
        if self._received is None:
            raise Gone("the server passed no descriptor, and this client sends no pings")
        self._say(CONFIRM)
        while (message := self._receive())[0] != CONFIRMED:
            self._dispatch(message)
        if self._fifo is not None:
            os.close(self._fifo)
        self._fifo = self._received

    def _say(self, kind, *rest):
        """Sends what has an acknowledgement. If it cannot be sent, resuming will tell."""
        try:
            self._send(kind, self._ack, *rest)
        except OSError:
            pass

    def _send(self, *message):
        data = pack(message)
        self._stream.sendall(struct.pack(">I", len(data)) + data)

    def _receive(self):
        (length,) = struct.unpack(">I", self._exactly(4))
        message = unpack(self._exactly(length))
        if message[0] == GOODBYE:
            raise Disconnected if message[1] >= TEMPORARY else Gone(*message[1:3])
        return message

    def _exactly(self, count):
        data = b""
        while len(data) < count:
            try:
                more, descriptors, *_ = socket.recv_fds(self._stream, count - len(data), 1, socket.MSG_CMSG_CLOEXEC)
            except OSError as error:
                raise Disconnected from error
            if not more:
                raise Disconnected
            # It comes with the first byte of some message, up to Fifo.
            if descriptors:
                self._received = descriptors[0]
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
            case ["release" | "abort", rid]:
                session.release(int(rid))
                say("done", rid)
            case ["query", *name]:
                entries = session.query(*name)
                say(*(f"{entry[0].decode()}:{entry[2]}:{'waiting' if entry[4] is None else 'held'}" for entry in entries))
            case ["count", name, file, rounds]:
                count(session, name, file, int(rounds))
                say("done", rounds)
            case ["close"]:
                session.close()
                say("closed")


if __name__ == "__main__":
    if sys.argv[1] == "vectors":
        print(vectors(sys.argv[2]))
    else:
        main(sys.argv[1])
