"""Numbers in sentences and in tables."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: float, noun: str) -> str:
    """A count with its noun in the right number.

    >>> counted(1, "pass"), counted(4, "pass"), counted(1962, "step"), counted(1.5, "epoch")
    ('1 pass', '4 passes', '1,962 steps', '1.5 epochs')
    """
    number = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    return f"{number} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


def is_numeral(text: str) -> bool:
    """Whether a text reads as a number.

    >>> is_numeral("2.1e19"), is_numeral("many")
    (True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """`columns` under their headers.

    >>> print(table(["family", "γ"], [["vanilla", "0.1112"]]))
    family        γ
    vanilla  0.1112
    """
    return columns([headers, *rows])


def columns(rows: Sequence[Sequence[str]], align: str = "<>") -> str:
    """Columns as wide as their content, two spaces between.

    Args:
        rows: Cells, as many in each row.
        align: "<" (left) or ">" (right) for every column; the last holds for all that follow.

    >>> print(columns([["steps", "100 of 8"], ["time", "1 h"]], "<"))
    steps  100 of 8
    time   1 h
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = align.ljust(len(widths), align[-1])
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=False)).rstrip()
        for row in rows
    )


def shown(value: float | None, form: str = ".4g") -> str:
    """A number in `form`, or a dash where there is none."""
    return "–" if value is None else format(value, form)


def shown_interval(interval: Sequence[float] | None, form: str = ".4g") -> str:
    """An interval as "[low, high]", or a dash."""
    return "–" if interval is None else f"[{interval[0]:{form}}, {interval[1]:{form}}]"
