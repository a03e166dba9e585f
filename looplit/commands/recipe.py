"""`python -m looplit recipe`: the run that a study prescribes. No torch here."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from typing import Any

from looplit.accounting.recurrence import RandomPasses
from looplit.commands.arguments import CommandParser, count, integer, integers, number, quantity, underscored
from looplit.commands.output import print_json
from looplit.commands.recipe_options import add_layout_options, add_output_options, assigned, layout_of
from looplit.commands.truncation_recipe import truncated_parser, truncated_run_of_args
from looplit.errors import require
from looplit.planning.card import run_card
from looplit.planning.contents import write_configs
from looplit.planning.published import published_runs
from looplit.planning.run_config import config_text
from looplit.recipes.budgets import run_for_compute, run_for_parameters, run_for_tokens
from looplit.recipes.families import FAMILIES
from looplit.recipes.growth_study import data_constrained, growth_study, recipe
from looplit.recipes.length import Budget
from looplit.recipes.lookup import study_of
from looplit.recipes.run import BATCH_TOKENS, Run
from looplit.recipes.study import Study
from looplit.recipes.training import is_number
from looplit.recipes.truncation_study import TRUNCATED_LOOP, truncation_study
from looplit.recipes.tuning import SCALED, Tuning
from looplit.recipes.variants import family_named, shape
from looplit.wording import is_numeral

# Options that the data-constrained recipe settles by itself.
NOT_DATA_CONSTRAINED = (
    "mode", "parameters", "fraction", "growth", "random_passes", "hyperparameters_of", "constant", "exponent",
    "mup_output", "optimizer", "set",
)  # fmt: skip

LENGTHS = ("flops", "tokens", "parameters", "tokens_per_parameter", "pool_tokens", "epochs")
"""Options that set how long a run is, or find its depth."""


def recipe_main(argv: list[str]) -> int:
    """`recipe FAMILY [DEPTH] …`: prints the run that its study prescribes, as a card, JSON or a config file.

    Raises:
        InputError: Wrong input, in one line.
    """
    args = parse_recipe(argv)
    if args.write_configs:
        for path in write_configs(args.write_configs, config_of):
            print(path)
        return 0
    run = run_of_args(args)
    if args.yaml:
        print(config_of(argv), end="")
    elif args.json:
        print_json(run.to_dict())
    else:
        print(run_card(run), end="")
    return 0


def parse_recipe(argv: list[str]) -> argparse.Namespace:
    """The options of the study that the first word belongs to; the growth study's if that is none."""
    name = argv[0] if argv and not argv[0].startswith("-") else ""
    study = study_of(name)
    if study in OPTIONS:
        return OPTIONS[study][0](name).parse_args(argv)
    parser = CommandParser("recipe", name, description=study.__doc__)
    parser.add_argument("family", choices=[name], metavar="FAMILY", help=name)
    study.add_options(parser)
    add_layout_options(parser)
    add_output_options(parser)
    return parser.parse_args(argv)


def run_of_args(args: argparse.Namespace) -> Run:
    """The run that parsed recipe options describe."""
    require(args.family is not None, "family", None, "say a family, e.g. untied_grow")
    study = study_of(args.family)
    return OPTIONS[study][1](args) if study in OPTIONS else study.run_of_options(args)


def growth_run_of_args(args: argparse.Namespace) -> Run:
    """The run of the growth study that parsed options describe."""
    family = family_named(args.family)
    backbone: dict[str, Any] = {
        name: value
        for name in ("vocabulary", "context", "boundary", "coda_boundary", "initial_state")
        if (value := getattr(args, name)) is not None
    }
    options: dict[str, Any] = {"batch_tokens": args.batch_tokens, **backbone}
    if args.data_constrained:
        return _data_constrained(args, options)
    require(args.weight_decay is None, "weight_decay", args.weight_decay, "needs --data_constrained (else --set it)")
    options |= {"mode": args.mode, "tuning": _tuning(args), "growth": _growth(args), "random_passes": _random(args)}
    if args.depth is not None:
        require(args.parameters is None, "parameters", args.parameters, "is a way to find the depth, leave that out")
        options |= shape(args.shape, family, args.depth)
        return recipe(args.family, args.depth, budget=_budget(args), **options)
    require(args.shape == "thirds", "shape", args.shape, "needs a depth")
    searches: dict[str, Callable[..., Run]] = {
        "flops": run_for_compute, "tokens": run_for_tokens, "parameters": run_for_parameters
    }  # fmt: skip
    given = [name for name in LENGTHS if getattr(args, name) is not None]
    ways = [name for name in given if name in searches]
    require(bool(ways), "depth", None, "say a depth, or one of --flops, --tokens and --parameters to find it")
    for name in given:
        rule = f"does not go with {ways[0]}, which finds the depth and the length; say a depth, or leave one out"
        require(name == ways[0], name, getattr(args, name), rule)
    return searches[ways[0]](args.family, getattr(args, ways[0]), **options)


def config_of(argv: list[str]) -> str:
    """The config file that recipe options describe."""
    args = parse_recipe(argv)
    run = run_of_args(args)
    options = [word for word in underscored(argv) if word != "--yaml"]
    published = next((other for other in published_runs() if other.options == options), None)
    return config_text(
        run,
        layout_of(args),
        claim=published.claim if published else "Not a run that the study prints.",
        command=f"python -m looplit recipe {shlex.join(options)} --yaml",
        name=published.name if published else f"{run.study.file_stem(run)}.yaml",
    )


def recipe_parser(name: str = "") -> argparse.ArgumentParser:
    """The options of `recipe` for the growth study, whatever the family's name."""
    parser = CommandParser(
        "recipe",
        "FAMILY [DEPTH]",
        description="The run that the growth study prescribes for a family and a depth, or for a budget. "
        f"The truncation study's have options of their own: recipe {TRUNCATED_LOOP.name} --help",
    )
    families = f"{', '.join((*FAMILIES, *growth_study.variants))}; or {TRUNCATED_LOOP.name}"
    parser.add_argument("family", nargs="?", metavar="FAMILY", help=families)
    parser.add_argument("depth", nargs="?", type=integer, metavar="DEPTH",
                        help="nominal depth, at least 3; or give a budget that finds it")  # fmt: skip
    _length_options(parser)
    data = parser.add_argument_group("data-constrained study")
    data.add_argument("--data_constrained", action="store_true", help="its recipe; 100M tokens ten times by default")
    data.add_argument("--weight_decay", help="fixed (0.8, default), selected (at K = 1, by depth), or a number")
    passes = parser.add_argument_group("passes")
    passes.add_argument("--fraction", type=number, help="growth fraction, the share of the run after growth")
    passes.add_argument("--growth", action="append", default=[], metavar="K:FRACTION", help="repeat for stages")
    passes.add_argument("--random_passes", type=integers, metavar="K,K,…", help="draw K from these after growth")
    passes.add_argument("--evaluate_at", type=integer, metavar="K", help="under random passes (default their mean)")
    _model_options(parser)
    add_layout_options(parser)
    add_output_options(parser)
    return parser


def _length_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("length").add_argument
    add("--tokens_per_parameter", "--tpp", type=number, help="of the initial model (default the family's)")
    add("--tokens", type=count, help="training tokens, e.g. 1B")
    add("--flops", type=quantity, help="training FLOPs, e.g. 1e20, not exceeded")
    add("--parameters", type=count, help="most stored parameters, e.g. 1B; finds the depth")
    add("--pool_tokens", type=count, help="unique tokens to repeat, e.g. 100M")
    add("--epochs", type=integer, help="passes over the pool")
    add("--batch_tokens", type=count, default=BATCH_TOKENS, help="per step")
    add("--mode", default="published", help="published, or simple: the study's advice")


def _model_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("model").add_argument
    add("--shape", default="thirds", help="thirds, width_only, deep_narrow, or like 2/C/3")
    add("--boundary", help="identity, norm, inject or norm_inject (default the family's)")
    add("--coda_boundary", help="the same, before the coda (default the family's)")
    add("--initial_state", default="prelude", help="prelude, as published, or zero")
    add("--vocabulary", type=integer, help="token ids (default GPT-2's)")
    add("--context", type=integer, help="tokens (default 2048)")
    add = parser.add_argument_group("hyperparameters").add_argument
    add("--hyperparameters_of", metavar="FAMILY", help="another family's base-tuned values")
    add("--constant", action="store_true", help="no scaling with size: every exponent 0")
    add("--exponent", action="append", default=[], metavar="NAME=b", help=f"of {', '.join(SCALED)}")
    add("--mup_output", action="store_true", help="output multiplier falls as 1/width")
    add("--optimizer", default="muon", help="muon or adamw, for the block matrices")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="any hyperparameter outright")


OPTIONS: dict[Study, tuple[Callable[[str], argparse.ArgumentParser], Callable[[argparse.Namespace], Run]]] = {
    growth_study: (recipe_parser, growth_run_of_args),
    truncation_study: (truncated_parser, truncated_run_of_args),
}


def _data_constrained(args: argparse.Namespace, options: dict[str, Any]) -> Run:
    require(args.depth is not None, "depth", None, "say a depth")
    own = recipe_parser()
    for name in NOT_DATA_CONSTRAINED:
        value = getattr(args, name)
        require(value == own.get_default(name), name, value, "is not an option of the data-constrained recipe")
    options |= shape(args.shape, family_named(args.family), args.depth)
    decay: Any = args.weight_decay or "fixed"
    lengths = (args.tokens, args.flops, args.pool_tokens, args.epochs, args.tokens_per_parameter)
    return data_constrained(
        args.family, args.depth,
        budget=_budget(args) if any(value is not None for value in lengths) else None,
        weight_decay=float(decay) if is_numeral(decay) else decay, **options,
    )  # fmt: skip


def _budget(args: argparse.Namespace) -> Budget:
    return Budget(args.tokens_per_parameter, args.tokens, args.flops, args.epochs, args.pool_tokens)


def _tuning(args: argparse.Namespace) -> Tuning:
    exponents: dict[str, float] = dict.fromkeys(SCALED, 0.0) if args.constant else {}
    for name, value in assigned("exponent", args.exponent).items():
        require(is_number(value), "exponent", f"{name}={value}", "must give a number")
        exponents[name] = float(value)
    return Tuning(
        hyperparameters_of=args.hyperparameters_of,
        exponents=exponents,
        mup_output=args.mup_output,
        optimizer=args.optimizer,
        overrides=assigned("set", args.set),
    )


def _growth(args: argparse.Namespace) -> list[tuple[int, float]] | None:
    if args.fraction is not None:
        target = family_named(args.family).grow_to
        require(target is not None and not args.growth, "fraction", args.fraction,
                "is for a family that grows by itself; give --growth K:FRACTION")  # fmt: skip
        assert target is not None
        return [(target, args.fraction)]
    if not args.growth:
        return None
    pairs = [text.partition(":") for text in args.growth]
    for text, (passes, _, fraction) in zip(args.growth, pairs, strict=True):
        require(passes.isdigit() and is_numeral(fraction), "growth", text, "must be like 4:0.3")
    return [(int(passes), float(fraction)) for passes, _, fraction in pairs]


def _random(args: argparse.Namespace) -> RandomPasses | None:
    choices = args.random_passes
    if choices is None:
        require(args.evaluate_at is None, "evaluate_at", args.evaluate_at, "needs --random_passes")
        return None
    return RandomPasses(tuple(choices), args.evaluate_at or round(sum(choices) / len(choices)), args.seed)
