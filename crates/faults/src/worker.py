"""A worker that uses the Python client: it asks for locks, touches what they protect, and writes down all it sees.

As `worker.rs`, with one hand. Arguments: the directory of the client, that of the run, the socket, the number of the history,
the seed, and any of these: `stubborn`; `forks`, the process that connects forks and exits, and its child goes on; `threads`, the
main thread connects and exits, and another goes on.
"""

import ctypes
import os
import random
import select
import signal
import sys
import threading
import time
import traceback

sys.path.insert(0, sys.argv[1])
import lockkeeper  # noqa: E402
from lockkeeper import BROKEN, GRANTED, QUEUED, REFUSED, RELEASED, UNAVAILABLE, Disconnected, Gone  # noqa: E402

DIR, PATH, PROCESS, SEED = sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
NAMES = "abcdef"
TOUCH, PAUSE = 0.002, 0.003
# Goes on with locks that it has released, as no client should.
STUBBORN = "stubborn" in sys.argv[6:]
PR_SET_CHILD_SUBREAPER = 36


def open_lines(*path):
    return os.open(os.path.join(DIR, *path), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def append(lines, *words):
    # One call: other processes append to the same file, and this one may be killed after any instruction.
    os.write(lines, (" ".join(map(str, (time.monotonic_ns(), *words))) + "\n").encode())


HISTORY = open_lines("histories", str(PROCESS))
RESOURCES = {name: open_lines("resources", name) for name in NAMES}


class Worker:
    def __init__(self):
        self.session, self.requests = None, 0

    def open(self):
        while self.session is None:
            try:
                self.session = lockkeeper.Session(PATH, "faults")
            except (Disconnected, Gone, OSError):
                time.sleep(PAUSE)

    def carry_out(self, scope, shared, flags, hold):
        """Makes one request and sees it through to its end."""
        self.open()
        number, self.requests = self.requests, self.requests + 1
        mode = "s" if shared else "x"
        how = flags[0] if flags else "wait"
        append(HISTORY, number, "asked", how, *(f"{name}:{mode}" for name in scope))
        try:
            key = self.session.request(scope, *flags, shared=shared)
            message = self.session.answer(key)
            if message[0] == QUEUED:
                append(HISTORY, number, "queued")
                message = self.session.wait(key)
            if message[0] == GRANTED:
                token = message[2]
                append(HISTORY, number, "granted", token)
                self.hold(scope, mode, token, number, hold)
                append(HISTORY, number, "releasing")
                self.session.release(key)
                append(HISTORY, number, "ended")
                if STUBBORN:
                    self.hold(scope, mode, token, number, 0.03)
            elif message[0] == UNAVAILABLE:
                append(HISTORY, number, "unavailable")
            elif message[0] == BROKEN:
                append(HISTORY, number, "broken", "lost" if message[2] == lockkeeper.LOST else "stolen")
            elif message[0] == REFUSED:
                append(HISTORY, number, "refused", message[2])
            else:
                raise AssertionError(message)
        except Gone:
            append(HISTORY, number, "broken", "lost")
            self.session = None

    @staticmethod
    def hold(scope, mode, token, number, hold):
        until = time.monotonic() + hold
        while True:
            for name in scope:
                append(RESOURCES[name], token, mode, PROCESS, number)
            if (left := until - time.monotonic()) <= 0:
                return
            time.sleep(min(left, TOUCH))


def work(worker):
    choose = random.Random(SEED)
    while not select.select([sys.stdin], [], [], 0)[0]:
        scope = choose.sample(NAMES, choose.choice([1, 1, 1, 2, 3]))
        flags = choose.choice([[], [], [], [], [], [], [], ["if-available"]])
        worker.carry_out(scope, choose.random() < 0.3, flags, choose.choice([0, 0.002, 0.02]))
    if sys.stdin.readline() != "settle\n":
        return
    for name in NAMES:
        worker.carry_out([name], False, [], 0)
    print("settled", flush=True)
    sys.stdin.readline()


def work_in_child(worker):
    """This process waits for its grandchild, which has what its child has opened before that exited."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if connecting := os.fork():
        os.waitpid(connecting, 0)
        _, status = os.wait()
        sys.exit(os.waitstatus_to_exitcode(status))
    worker.open()
    if os.fork():
        os._exit(0)
    work(worker)


def work_on_thread(worker):
    worker.open()

    def run():
        try:
            work(worker)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    threading.Thread(target=run).start()
    ctypes.CDLL(None).pthread_exit(None)


signal.signal(signal.SIGINT, signal.SIG_DFL)
{"forks": work_in_child, "threads": work_on_thread}.get(sys.argv[-1], work)(Worker())
