"""Reads info for the bell, and does not look at the version."""

import sys

from honest import Trainer


class Faulty(Trainer):
    def check_info(self):
        with open(self.dir + "/info") as info:
            if "bell=sem\n" in info.read():
                sys.exit("this program waits for a FIFO only")


Faulty().train()
