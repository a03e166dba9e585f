"""`python -m looplit recipe truncated_loop`: the runs of the truncation study. No torch here."""

from __future__ import annotations

import argparse
from typing import Any

from looplit.commands.arguments import CommandParser, count, integer
from looplit.commands.recipe_options import add_layout_options, add_output_options, assigned
from looplit.errors import require
from looplit.recipes.run import Run
from looplit.recipes.truncation_study import BATCH_TOKENS, RATES, TOKENS, TRUNCATED_LOOP, WIDTHS, truncated_run


def truncated_parser(name: str = TRUNCATED_LOOP.name) -> argparse.ArgumentParser:
    """The options of `recipe truncated_loop`, or of a class of one's own in its study."""
    parser = CommandParser(
        "recipe",
        f"{name} --passes T",
        description="A run of the truncation study: T passes of one core, the gradient through the last B.",
    )
    parser.add_argument("family", choices=[name], metavar="FAMILY", help=name)
    add = parser.add_argument_group("setting").add_argument
    add("--passes", "--T", type=integer, required=True, metavar="T", help="passes")
    add("--trained_passes", "--B", type=integer, metavar="B", help="the last ones (default T, full backpropagation)")
    add = parser.add_argument_group("length").add_argument
    add("--tokens", type=count, default=TOKENS, help="training tokens")
    add("--batch_tokens", type=count, default=BATCH_TOKENS, help="per step")
    add = parser.add_argument_group("model").add_argument
    add("--width", type=integer, default=WIDTHS[0], help=f"{', '.join(map(str, WIDTHS))} for 60M to 1B")
    add("--boundary", help="linear (default; identity at one pass), inject, identity, …")
    add("--mlp", help="squared_relu (default) or swiglu")
    add("--vocabulary", type=integer, help="32768 fits the study's printed compute (default GPT-2's)")
    add("--context", type=integer, help="tokens (default 2048)")
    add = parser.add_argument_group("hyperparameters").add_argument
    add("--set", action="append", default=[], metavar="NAME=VALUE", help=f"of {', '.join(RATES)}")
    add_layout_options(parser)
    add_output_options(parser)
    return parser


def truncated_run_of_args(args: argparse.Namespace) -> Run:
    """The run that parsed options describe."""
    overrides = assigned("set", args.set)
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
