"""Model files as numbers and the rest: `bytes -> Content` and back.  Pure: no file, no process, no clock.

    read(data, layout) -> Content        where the numbers are, and what they are
    matches(given, taken)                 may number i of one be compared with number i of the other?  Raises `LayoutError`.
    write(content, values) -> bytes       the same file with other numbers; what does not change keeps its bytes
"""

from .base import Content, LayoutError
from .forms import Layout, detect, matches, parse_layout, place_of, read, split_file, write

__all__ = ["Content", "Layout", "LayoutError", "detect", "matches", "parse_layout", "place_of", "read", "split_file", "write"]
