"""Reads info by the number of the line."""

import sys

from honest import Trainer


class Faulty(Trainer):
    def check_info(self):
        with open(self.dir + "/info") as info:
            lines = info.read().splitlines()
        if lines[0] != "version=1" or "bell=fifo" not in lines:
            sys.exit("another version of the channel")
        self.workers = int(lines[4].partition("=")[2])


Faulty().train()
