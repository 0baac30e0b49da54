"""Steps per second over time, with the faults marked: one picture, as text of SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, ROW, LEFT, TOP = 1200, 150, 60, 30
COLOURS = {"a server": "#c0392b", "a master": "#8e44ad", "an agent": "#d68910", "a disk": "#2874a6", "all": "#566573"}

#: From, to (seconds), what it cost, words.
Mark = tuple[float, float, str, str]


def chart(names: Sequence[str], samples: Sequence[tuple[float, Sequence[int]]], marks: Sequence[Mark], bin_s: float = 0.5) -> str:
    """`samples`: time and the steps of each job so far."""
    end = max(samples[-1][0], bin_s)
    x = (WIDTH - LEFT - 10) / end
    parts = []
    for number, name in enumerate(names):
        base = TOP + (number + 1) * ROW - 20
        rates = _rates([(at, steps[number]) for at, steps in samples], bin_s)
        high = max(rates) or 1.0
        for begin, until, costs, words in marks:
            parts.append(
                f'<rect x="{LEFT + begin * x:.1f}" y="{base - ROW + 40}" width="{max(1.0, (until - begin) * x):.1f}" height="{ROW - 40}" '
                f'fill="{COLOURS[costs]}" opacity="0.25"><title>{escape(words)}</title></rect>'
            )
        points = " ".join(f"{LEFT + (i + 0.5) * bin_s * x:.1f},{base - rate / high * (ROW - 40):.1f}" for i, rate in enumerate(rates))
        parts.append(f'<polyline points="{points}" fill="none" stroke="#1b2631" stroke-width="1"/>')
        parts.append(f'<line x1="{LEFT}" y1="{base}" x2="{WIDTH - 10}" y2="{base}" stroke="#aaa"/>')
        parts.append(f'<text x="{LEFT}" y="{base - ROW + 34}">{escape(name)}: steps per second, at most {high:.0f}</text>')
    bottom = TOP + len(names) * ROW
    step = next(step for step in (5, 10, 30, 60, 120, 600) if end / step <= 20 or step == 600)
    parts += [f'<text x="{LEFT + at * x:.1f}" y="{bottom}">{at} s</text>' for at in range(0, int(end) + 1, step)]
    for number, (costs, colour) in enumerate(COLOURS.items()):
        parts.append(f'<text x="{LEFT + number * 160}" y="18" fill="{colour}">fault of {escape(costs)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + 15}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"


def _rates(samples: Sequence[tuple[float, int]], bin_s: float) -> list[float]:
    """Steps per second in each bin; a sample's steps fall into the bin in which it was taken."""
    found = [0.0] * (int(samples[-1][0] / bin_s) + 1)
    for (_, before), (at, after) in zip(samples, samples[1:]):
        found[int(at / bin_s)] += (after - before) / bin_s
    return found
