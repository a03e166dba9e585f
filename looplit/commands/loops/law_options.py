"""Options of every answer from the law."""

from __future__ import annotations

import argparse

from looplit.commands.arguments import number
from looplit.laws.loops.law import NREC, PUBLISHED, LoopLaw


def law_options(parser: argparse.ArgumentParser) -> None:
    """Which law, and the core's share of the model."""
    group = parser.add_argument_group("law")
    group.add_argument("--recurrent_share", "--nrec", dest="nrec", type=number, default=NREC,
                       help="N_rec/N, the core's share of non-embedding parameters (default %(default)s, the study's "
                       "240M model)")  # fmt: skip
    group.add_argument("--law", metavar="FILE", help="fit saved by `loops fit --out` (default the published law)")


def chosen_law(path: str | None) -> LoopLaw:
    """The published law, or the one of a saved fit."""
    if path is None:
        return PUBLISHED
    from looplit.laws.loops.fit import load_law

    return load_law(path)
