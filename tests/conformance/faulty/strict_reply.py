"""Reads a reply by the place of its words."""

from honest import Trainer


class Faulty(Trainer):
    def take(self, words):
        if words[0] == "ok" and len(words) > 3 and not words[3].startswith(("v=", "done=", "stop=")):
            raise ValueError(f"no reply: {words}")
        super().take(words)


Faulty().train()
