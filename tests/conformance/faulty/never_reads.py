"""Looks into ctl for done_seq and leaves the replies where they are."""

import os
import struct
import time

from honest import Trainer


class Faulty(Trainer):
    def attach(self):
        if self.dir is None:
            return
        try:
            self.check_info()
            if self.word("8s", 0) != b"PLUGMLC1" or self.word("<H", 8) != 1:
                raise SystemExit("another version of ctl")
            self.req = os.open(self.dir + "/req", os.O_RDWR)
        except OSError as error:
            raise SystemExit(f"no channel: {error}") from None
        self.clock = self.first_clock()

    def wait(self, seq):
        while self.word("<Q", 0x80) < seq:
            time.sleep(0.001)
        return ["ok", str(seq), str(self.word("<q", 0x90))]

    def word(self, kind, at):
        with open(self.dir + "/ctl", "rb") as ctl:
            return struct.unpack_from(kind, ctl.read(), at)[0]


Faulty().train()
