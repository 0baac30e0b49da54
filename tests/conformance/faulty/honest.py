"""A trainer of bare files that does everything right.  Each of its neighbours does one thing as people do it.

It pushes eight numbers of float64 a step, says hello first, and goes on after what is refused if it may.
"""

import array
import os
import sys

STEPS = 6
COUNT = 8
FATAL = ("VERSION", "GONE", "FENCED", "PERM")


class Trainer:
    """`answer` is the last reply: ok or err, seq, clock, and what else it said."""

    def __init__(self):
        self.dir = os.environ.get("PLUGML_DIR")
        self.seq = self.clock = 0
        self.over = self.failed = False
        self.answer = ("ok", 0, 0, {})

    # -- the channel

    def attach(self):
        if self.dir is None:
            return
        try:
            self.check_info()
            self.req = os.open(self.dir + "/req", os.O_RDWR)
            self.rep = os.open(self.dir + "/rep", os.O_RDONLY | os.O_NONBLOCK)
            os.set_blocking(self.rep, True)
        except OSError as error:
            sys.exit(f"no channel: {error}")
        self.clock = self.first_clock()
        self.discard()
        self.ask("hello", 0)
        self.seq = int(self.answer[3]["done"])
        self.clock = self.answer[2]

    def check_info(self):
        with open(self.dir + "/info") as info:
            facts = dict(line.rstrip("\n").split("=", 1) for line in info if not line.startswith("table="))
        if facts["version"] != "1":
            sys.exit("another version of the channel")
        if facts["bell"] != "fifo":
            sys.exit("this program waits for a FIFO only")

    def first_clock(self):
        return int(os.environ["PLUGML_CLOCK"])

    def discard(self):
        os.set_blocking(self.rep, False)
        try:
            while os.read(self.rep, 4096):
                pass
        except BlockingIOError:
            pass
        os.set_blocking(self.rep, True)

    def write_grad(self, numbers):
        with open(self.dir + "/grad", "wb") as grad:
            grad.write(self.raw(numbers))

    def raw(self, numbers):
        return array.array("d", numbers).tobytes()

    def write_cmd(self, line):
        with open(self.dir + "/cmd", "wb") as cmd:
            cmd.write(line.encode() + b"\n")

    def ring(self):
        os.write(self.req, b"\n")

    def read_record(self):
        record = os.read(self.rep, 64)
        if not record:
            sys.exit("GONE: agent and launcher have ended")
        return record.decode()

    def wait(self, seq):
        while True:
            words = self.read_record().split()
            if int(words[1]) == seq:
                return words

    def ask(self, verb, seq, more=""):
        self.send(f"{verb} {seq} {self.clock}{more}")
        words = self.wait(seq)
        while "code=AGAIN" in words:
            words = self.again(f"{verb} {seq} {self.clock}{more}", seq)
        self.take(words)

    def again(self, line, seq):
        self.send(line)
        return self.wait(seq)

    def send(self, line):
        self.write_cmd(line)
        self.ring()

    def take(self, words):
        more = dict(word.split("=", 1) for word in words[3:] if "=" in word)
        self.answer = (words[0], int(words[1]), int(words[2]), more)

    # -- training

    def gradient(self):
        return [0.5 + 0.25 * self.clock + i for i in range(COUNT)]

    def step(self):
        self.write_grad(self.gradient())
        self.seq += 1
        self.ask("step", self.seq, self.keys())
        self.mind()

    def keys(self):
        return ""

    def mind(self):
        """Believe the reply."""
        status, _seq, self.clock, more = self.answer
        code = more.get("code", "")
        if status == "ok":
            self.failed = False
            self.over = "stop" in more
            self.read_param()
        elif code == "STOP":
            self.over = True
        elif code in FATAL:
            self.die(code)
        else:
            self.failed = True

    def read_param(self):
        with open(self.dir + "/param", "rb") as param:
            return param.read()

    def die(self, code):
        sys.exit(code)

    def train(self):
        self.attach()
        for _ in range(STEPS):
            if self.dir is None:
                self.clock += 1
                continue
            if self.over:
                break
            self.step()
        self.bye()

    def bye(self):
        if self.dir is not None:
            self.seq += 1
            self.ask("bye", self.seq)
            if self.failed:
                sys.exit("the last step was refused")


if __name__ == "__main__":
    Trainer().train()
