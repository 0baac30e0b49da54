"""Writes numbers in network order."""

import array

from honest import Trainer


class Faulty(Trainer):
    def raw(self, numbers):
        data = array.array("d", numbers)
        data.byteswap()
        return data.tobytes()


Faulty().train()
