"""`python -m looplit loops`: what a loop setting is worth, which is best, and the law from one's own runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

from looplit.commands.arguments import CommandParser, natural, quantity
from looplit.errors import InputError, require, require_between
from looplit.laws.loops.law import COMPUTE_UNIT, EQUATION, NREC, PUBLISHED, UNITS, LoopLaw
from looplit.laws.loops.optimum import Setting, Worth, best_trained_passes, full_backpropagation, worth
from looplit.wording import counted

SUBCOMMANDS = {
    "optimum": "the best setting at given passes, loop compute, size or training compute",
    "frontier": "parameters saved against compute needed, every setting of the study",
    "fit": "the law from finished runs, and what the runs say by themselves",
}


MOST_PASSES = 10_000
"""T that the answers go up to, far beyond what was ever trained."""


def loops_main(argv: Sequence[str]) -> int:
    """Runs `loops --T T --B B` or one of its subcommands and prints its table, or its JSON.

    Args:
        argv: Arguments after `loops`.

    Raises:
        InputError: Wrong input; the message is one line.
    """
    arguments = list(argv)
    if arguments and arguments[0] in SUBCOMMANDS:
        # What a setting is worth needs no scipy and is answered without it.
        from looplit.commands.loops.answers import run_subcommand

        return run_subcommand(arguments[0], subcommand_parser(arguments[0]).parse_args(arguments[1:]))
    if arguments and not arguments[0].startswith("-"):
        raise InputError(f"loops = {arguments[0]!r}: must be one of {', '.join(SUBCOMMANDS)}, or options such as --T")
    args = worth_parser().parse_args(arguments)
    check_passes(args.T)
    require(1 <= args.B <= args.T, "B", args.B, f"must be from 1 to T = {args.T}")
    law = chosen_law(args.law)
    payload = worth_payload(args.T, args.B, args.nrec, law)
    if args.json:
        print(json.dumps(payload, indent=1, allow_nan=False))
    else:
        print(worth_card(payload, args.nrec, law), method_line(args.nrec, law), sep="\n")
    return 0


def check_passes(passes: int) -> None:
    """Refuses a T that no answer is for: every B up to it is tried."""
    require_between("T", passes, 1, MOST_PASSES)


def worth_parser() -> argparse.ArgumentParser:
    """The options of `loops` without a subcommand."""
    parser = CommandParser(
        prog="python -m looplit loops",
        description="What a loop setting (T, B) is worth: T passes, gradient through the last B.",
        epilog="subcommands, each with --help: " + "; ".join(f"{name}, {what}" for name, what in SUBCOMMANDS.items()),
    )
    parser.add_argument("--T", type=int, required=True, help="passes")
    parser.add_argument("--B", type=int, required=True, help="trained passes, the last ones")
    law_arguments(parser)
    return parser


def subcommand_parser(name: str) -> argparse.ArgumentParser:
    """The options of one subcommand."""
    parser = CommandParser(prog=f"python -m looplit loops {name}", description=SUBCOMMANDS[name])
    _ADD[name](parser)
    return parser


def law_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of every answer from the law."""
    parser.add_argument("--nrec", type=float, default=NREC, help="N_rec/N, the core's share of non-embedding "
                        "parameters (default %(default)s, the study's 240M model)")  # fmt: skip
    parser.add_argument("--law", metavar="FILE", help="fit saved by `loops fit --save` (default: the published one)")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")


def _optimum_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n", type=quantity, help="non-embedding parameters, e.g. 240M")
    parser.add_argument("--compute", type=quantity, help="training FLOPs, 6·N_comp·D")
    parser.add_argument("--T", type=int, help="prescribed passes")
    parser.add_argument("--units", type=quantity, help="prescribed loop compute T + 2B; excludes the others")
    parser.add_argument("--plot", metavar="FILE", help="with --n, also draw loss minus no looping over budgets")
    law_arguments(parser)


def _frontier_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plot", metavar="FILE", help="also draw the figure: .svg, .png or .pdf")
    law_arguments(parser)


def _fit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", help="CSV table, or folder of runs that holds their result.json files")
    parser.add_argument("--where", nargs="+", default=[], metavar="COLUMN=VALUE[,VALUE]", help="read only such runs")
    parser.add_argument("--loss", default="final_val_loss", help="column of the loss (default %(default)s)")
    parser.add_argument("--nrec", type=float, help="N_rec/N of every run (default: each run's recurrent_parameters)")
    parser.add_argument("--own_flops", action="store_true", help="compare runs at equal training_flops, as they "
                        "report it, in place of the law's 6·N_comp·D")  # fmt: skip
    parser.add_argument("--budget", type=quantity, help="FLOPs at which to read compute-optimal sizes")
    parser.add_argument("--hold", nargs="+", default=[], metavar="NAME=VALUE", help="hold c, p or q")
    parser.add_argument("--bootstrap", type=natural, default=0, metavar="N", help="resamples behind 90%% intervals")
    parser.add_argument("--seed", type=int, default=0, help="of the resampling (default %(default)s)")
    parser.add_argument("--save", metavar="FILE", help="write the fit as JSON, for --law")
    parser.add_argument("--plot", metavar="FILE", help="also draw what a setting is worth, and loss at equal compute")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")


_ADD: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "optimum": _optimum_arguments,
    "frontier": _frontier_arguments,
    "fit": _fit_arguments,
}


def chosen_law(path: str | None) -> LoopLaw:
    """The published law, or the one of a saved fit."""
    if path is None:
        return PUBLISHED
    from looplit.laws.loops.fit import load_law

    return load_law(path)


def worth_payload(passes: int, trained_passes: int, nrec: float, law: LoopLaw) -> dict[str, Any]:
    """The JSON form of what one setting is worth."""
    here = worth(passes, trained_passes, nrec, law)
    full = full_backpropagation(here.units)
    return worth_fields(here) | {
        "best_B": None if law.untold else best_trained_passes(passes, nrec, law),
        "full_bptt_alternative": worth_fields(worth(*full, nrec, law)),
        "method": method_fields(nrec, law),
    }


def method_fields(nrec: float, law: LoopLaw) -> dict[str, Any]:
    """The JSON keys of how an answer comes about: the law, what was held, and units."""
    said = {"equation": EQUATION, "law": law_name(law), "held": law.coefficients | {"nrec": nrec}, "units": UNITS}
    return said | {"warnings": list(law.untold)}


def method_line(nrec: float, law: LoopLaw) -> str:
    """The same for the screen, in three lines; what the law's runs could not tell follows."""
    held = ", ".join(f"{name} = {value:.5g}" for name, value in law.coefficients.items())
    return "\n".join([
        f"by {law_name(law)}, {EQUATION}",
        f"  L in {UNITS['loss']}, N in non-embedding parameters, D in tokens; compute in {COMPUTE_UNIT}",
        f"  held: {held}, N_rec/N = {nrec:g}",
        *(f"warning: {sentence}; what rests on it above is a guess" for sentence in law.untold),
    ])  # fmt: skip


def law_name(law: LoopLaw) -> str:
    """Whose law an answer goes by."""
    return "the published law" if law == PUBLISHED else "the given law"


def worth_fields(found: Worth) -> dict[str, Any]:
    """The JSON keys of one setting."""
    return setting_fields(found.setting) | {
        "g": found.g,
        "effective_ratio": found.effective_ratio,
        "units": int(found.units),
        "compute_per_token": found.compute_per_token,
        "compute_per_effective": found.compute_per_effective,
    }


def setting_fields(setting: Setting) -> dict[str, Any]:
    """T and B, as whole numbers where they are."""
    t, b = (int(value) if value == int(value) else value for value in setting)
    return {"T": t, "B": b}


def verdict(law: LoopLaw) -> str:
    """What q - 2p says where T and B are both free, and that it says nothing where the runs do not tell p from q."""
    if law.untold:
        return "not identified"
    return "train every pass" if law.criterion >= 0 else f"train {law.q / (2 * law.p):.0%} of the passes"


def worth_card(payload: dict[str, Any], nrec: float, law: LoopLaw) -> str:
    """The answer on screen."""
    t, b, full = payload["T"], payload["B"], payload["full_bptt_alternative"]
    saved = 1 - 1 / payload["effective_ratio"]
    prescribed = _prescribed(payload, nrec, law)
    chosen = (
        "every pass is trained already"
        if t == b
        else f"({full['T']}, {full['B']}) costs {full['units']} units and has g {full['g']:.3f}, N_eff/N "
        f"{full['effective_ratio']:.3f}, compute per effective parameter {full['compute_per_effective']:.3f}"
    )
    lines = [
        ("g(T, B)", f"{payload['g']:.3f}", f"untied copies of the core; 1 without looping, ceiling {law.ceiling:.2f}"),
        ("N_eff/N", f"{payload['effective_ratio']:.3f}", "size of the model without loops that is as good"),
        ("cost of the core", f"{payload['units']}", "units, T + 2B; 3 without looping"),
        ("compute per token", f"{payload['compute_per_token']:.3f}", "relative to no looping"),
        ("compute per effective parameter", f"{payload['compute_per_effective']:.3f}",
         f"needed at the loss of the best model without loops, with {saved:.1%} fewer parameters"),
    ]  # fmt: skip
    return "\n".join([
        f"({t}, {b}): {counted(t, 'pass')}, the last {b} trained; "
        f"N_rec/N = {nrec:g}; by {law_name(law)}, compute 6·N_comp·D",
        *(f"  {name:<32}{value:>7}  {meaning}" for name, value, meaning in lines),
        f"  if T = {t} is prescribed: {prescribed}",
        f"  if T can be chosen too: {chosen}",
    ])  # fmt: skip


def _prescribed(payload: dict[str, Any], nrec: float, law: LoopLaw) -> str:
    """Which B is best at the T of a setting."""
    best = payload["best_B"]
    if best is None:
        return "the best B is not identified"
    if best == payload["B"]:
        return f"B = {best} is best at equal loss"
    needed = worth(payload["T"], best, nrec, law).compute_per_effective
    return f"B = {best} is best, with {1 - needed / payload['compute_per_effective']:.1%} less compute at equal loss"
