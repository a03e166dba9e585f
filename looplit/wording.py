"""Numbers in text."""

from __future__ import annotations


def counted(count: float, noun: str) -> str:
    """A count with its noun in the right number.

    >>> counted(1, "pass"), counted(4, "pass"), counted(1962, "step"), counted(1.5, "epoch")
    ('1 pass', '4 passes', '1,962 steps', '1.5 epochs')
    """
    number = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    return f"{number} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


def is_numeral(text: str) -> bool:
    """Whether Python reads the text as a number.

    >>> is_numeral("1e9"), is_numeral("0,5")
    (True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True
