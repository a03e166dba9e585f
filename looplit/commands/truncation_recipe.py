"""`python -m looplit recipe truncated_loop`: the runs of the truncation study. No torch here."""

from __future__ import annotations

import argparse
from typing import Any

from looplit.commands.arguments import CommandParser, count
from looplit.commands.recipe_options import add_layout_options, add_output_options, assignments
from looplit.errors import require
from looplit.recipes.run import Run
from looplit.recipes.truncation_study import BATCH_TOKENS, RATES, TOKENS, TRUNCATED_LOOP, WIDTHS, truncated_run


def truncated_parser(name: str = TRUNCATED_LOOP.name) -> argparse.ArgumentParser:
    """The options of `recipe truncated_loop`, or of a class of one's own in its study."""
    parser = CommandParser(
        prog=f"python -m looplit recipe {name}",
        description="A run of the truncation study: T passes of one core, the gradient through the last B.",
    )
    parser.add_argument("family", choices=[name])
    parser.add_argument("--passes", type=int, required=True, help="T")
    parser.add_argument("--trained-passes", type=int, help="B (default T, full backpropagation)")
    widths = ", ".join(map(str, WIDTHS))
    parser.add_argument("--width", type=int, default=WIDTHS[0], help=f"{widths} for 60M to 1B (default %(default)s)")
    parser.add_argument("--tokens", type=count, default=TOKENS, help="training tokens (default %(default)s)")
    parser.add_argument("--batch-tokens", type=count, default=BATCH_TOKENS, help="per step (default %(default)s)")
    parser.add_argument("--boundary", help="linear (default; identity at one pass), inject, identity, …")
    parser.add_argument("--mlp", help="squared_relu (default) or swiglu")
    parser.add_argument("--vocabulary", type=int, help="32768 fits the study's printed compute (default GPT-2's)")
    parser.add_argument("--context", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=f"of {', '.join(RATES)}")
    add_layout_options(parser)
    add_output_options(parser)
    return parser


def truncated_run_of_args(args: argparse.Namespace) -> Run:
    """The run that parsed options describe."""
    overrides = assignments("set", args.set)
    for name in overrides:
        require(name in RATES, "set", name, f"must be one of {', '.join(RATES)}")
    shape: dict[str, Any] = {
        name: value
        for name in ("boundary", "mlp", "vocabulary", "context")
        if (value := getattr(args, name)) is not None
    }
    return truncated_run(
        args.passes,
        args.trained_passes,
        width=args.width,
        tokens=args.tokens,
        batch_tokens=args.batch_tokens,
        family=args.family,
        **shape,
        **overrides,
    )
