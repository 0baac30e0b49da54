"""plugml: distributed training for the program that you already have.

Most people never import anything: they run `plugml run -n 4 -- ./trainer` and plug the trainer into its channel.
A Python trainer uses `plugml.client`.  This package itself imports nothing, so that a worker stays light.
"""

__version__ = "0.1.0"
