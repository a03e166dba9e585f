"""`python -m looplit lens` and `passes`: how deep checkpoints compute, and what more or fewer passes cost."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from looplit.commands.arguments import CommandParser, count, number_from_0, require_checkpoints, require_file_name
from looplit.errors import require
from looplit.wording import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from looplit.eval.lens import LensResult
    from looplit.eval.passes import PassesResult
    from looplit.modules import LoopedLM


def lens_main(argv: list[str]) -> int:
    """`lens --ckpt_path X [Y …]`: the logit lens of one checkpoint, or effective depth along a ladder of them.

    Raises:
        InputError: Wrong input, in one line.
    """
    parser = _parser("lens", "Logit lens of a checkpoint, block by block; of several, effective depth against compute.")
    parser.add_argument(
        "--threshold", type=number_from_0, default=2.0, help="of effective depth, nats (default %(default)s)"
    )
    parser.add_argument("--direction", choices=("final_decoded", "decoded_final"), default="final_decoded",
                        help="KL(final ‖ decoded), the study's, or the other (default %(default)s)")  # fmt: skip
    args = _parse(parser, argv)

    from looplit.eval.lens import lens

    rows, results = [], []
    for path in args.ckpt_path:
        model = _load(path, args)
        result = lens(model, _batches(path, model, args), threshold=args.threshold, direction=args.direction)
        rows.append({**_run(path, model), **result.to_dict()})
        results.append(result)
    print(_block_table(results[0]) if len(rows) == 1 else _ladder_table(rows))
    first, second = args.direction.split("_")
    tokens = " / ".join(f"{tokens:,}" for tokens in sorted({result.tokens for result in results}))
    print(f"KL({first} ‖ {second}) over {tokens} tokens; threshold of effective depth {args.threshold:g} nats")
    _write_json(args, rows)
    if args.plot:
        from looplit.plots.style import save

        save(_ladder_figure(rows) if len(rows) > 1 else _lens_figure(rows[0]["family"], results[0]), args.plot)
    return 0


def passes_main(argv: list[str]) -> int:
    """`passes --ckpt_path X [Y …] --passes 1,2,4,8,16`: loss at other numbers of passes, and above the trained one's.

    An untied checkpoint has losses up to the cores that were trained when it was saved; more are refused.

    Raises:
        InputError: Wrong input, in one line.
    """
    parser = _parser("passes", "Loss of checkpoints at other numbers of passes than trained.")
    parser.add_argument("--passes", required=True, type=_numbers, metavar="K,K,…", help="e.g. 1,2,4,8,16")
    args = _parse(parser, argv)

    from looplit.eval.passes import awake_passes, check_passes, loss_at_passes

    rows, results = [], {}
    for path in args.ckpt_path:
        model = _load(path, args)
        check_passes(model.backbone, args.passes, awake_passes(model))
        result = loss_at_passes(model.backbone, _batches(path, model, args), args.passes)
        rows.append({**_run(path, model), **result.to_dict()})
        results[model.recipe.name if len(args.ckpt_path) == 1 else str(path)] = result
        print(f"{path}: {model.recipe.name} trained at {counted(result.trained, 'pass')}, {result.tokens:,} tokens")
        print(_passes_table(result))
    _write_json(args, rows)
    if args.plot:
        from looplit.plots.lens import passes_figure
        from looplit.plots.style import save

        save(passes_figure(results), args.plot)
    return 0


def _parser(command: str, description: str) -> CommandParser:
    parser = CommandParser(prog=f"python -m looplit {command}", description=description)
    add = parser.add_argument
    add("--ckpt_path", required=True, nargs="+", metavar="CKPT", help="checkpoints of LoopLit's runs")
    add("--data", metavar="FOLDER", help="prepared corpus (default: the data of the checkpoint's run)")
    add("--tokens", type=count, default=65_536, help="validation tokens at most (default %(default)s)")
    add("--batch_size", type=count, help="rows per forward (default: the data's)")
    add("--device", help="cpu, cuda, cuda:1, … (default: cuda where there is one)")
    add("--json", metavar="OUT.json", help="write all numbers there")
    add("--plot", metavar="OUT.png", help="write the figure there (.png, .svg or .pdf)")
    return parser


def _parse(parser: CommandParser, argv: list[str]) -> argparse.Namespace:
    args = parser.parse_args(argv)
    if args.plot:
        require(Path(args.plot).suffix in (".svg", ".png", ".pdf"), "plot", args.plot, "must end in .svg, .png or .pdf")
    require_checkpoints(args.ckpt_path)
    for name in ("json", "plot"):
        require_file_name(name, getattr(args, name))
    return args


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers") from None


def _load(path: str, args: argparse.Namespace) -> LoopedLM:
    from looplit.eval.device import chosen_device
    from looplit.modules import load

    return load(path, chosen_device(args.device), "ckpt_path")


def _batches(path: str, model: LoopedLM, args: argparse.Namespace) -> list[tuple[Tensor, Tensor]]:
    from looplit.eval.run_data import validation_sample

    config = model.config
    sample = validation_sample(path, args.data, config, args.tokens, args.batch_size)
    batches = sample.batches(model.device)
    largest = max(int(tokens.max()) for batch in batches for tokens in batch)
    rule = f"holds token {largest}; the model's vocabulary is {config.vocabulary}"
    require(largest < config.vocabulary, "data", args.data, rule)
    return batches


def _run(path: str, model: LoopedLM) -> dict[str, Any]:
    recipe = model.recipe
    return {
        "checkpoint_path": str(path),
        "family": recipe.name,
        **({"depth": recipe.depth} if recipe.depth else {}),
        "passes": model.backbone.passes,
        "training_flops": model.meter.flops,
    }


def _write_json(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    if args.json:
        out = Path(args.json)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(rows[0] if len(rows) == 1 else rows, indent=2) + "\n")


def _block_table(result: LensResult) -> str:
    header = ("", "block", "KL", "agreement", "loss", "RMS", "update")
    lines = [
        (f"{i}{'*' if i == result.effective_depth else ' '}", result.labels[i - 1], f"{result.kl[i - 1]:.4f}",
         f"{result.agreement[i - 1]:.4f}", f"{result.loss[i - 1]:.4f}", f"{result.rms[i - 1]:.3g}",
         f"{result.update[i - 1]:.3g}")
        for i in range(1, result.executed_depth + 1)
    ]  # fmt: skip
    depth = f"* effective depth {result.effective_depth} of {result.executed_depth} executed blocks"
    return f"{_table([header, *lines])}\n{depth}"


def _ladder_table(rows: list[dict[str, Any]]) -> str:
    header = ("family", "depth", "passes", "executed", "effective", "training FLOPs", "loss")
    lines = [
        (row["family"], str(row.get("depth", "–")), str(row["passes"]), str(row["executed_depth"]),
         str(row["effective_depth"]), f"{row['training_flops']:.4g}", f"{row['blocks'][-1]['loss']:.4f}")
        for row in rows
    ]  # fmt: skip
    return _table([header, *lines])


def _passes_table(result: PassesResult) -> str:
    lines = [(str(k), f"{loss:.4f}", f"{result.excess(k):+.4f}") for k, loss in result.losses.items()]
    return _table([("passes", "loss", "- trained"), *lines])


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _lens_figure(family: str, result: LensResult) -> Figure:
    from looplit.plots.lens import lens_figure

    return lens_figure({family: result})


def _ladder_figure(rows: list[dict[str, Any]]) -> Figure:
    from looplit.laws.results import Result
    from looplit.plots.depth import effective_depth_figure

    names = ("training_flops", "effective_depth", "executed_depth")
    return effective_depth_figure([
        Result(row["checkpoint_path"], {"family": row["family"]}, {name: float(row[name]) for name in names})
        for row in rows
    ])  # fmt: skip
