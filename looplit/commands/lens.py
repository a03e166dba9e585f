"""`python -m looplit lens`: how deep checkpoints compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from looplit.commands.arguments import number_from_0
from looplit.commands.checkpoints import (
    checkpoint_parser,
    load_checkpoint,
    parse_checkpoints,
    run_fields,
    show_rows,
    validation_batches,
)
from looplit.commands.output import draw_plot
from looplit.wording import columns, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from looplit.eval.lens import LensResult


def lens_main(argv: list[str]) -> int:
    """`lens --ckpt_path X [Y …]`: the logit lens of one checkpoint, or effective depth along a ladder of them.

    Raises:
        InputError: Wrong input, in one line.
    """
    described = "Logit lens of a checkpoint, block by block; of several, effective depth against compute."
    parser = checkpoint_parser("lens", described, "the lens, or effective depth against compute")
    group = parser.add_argument_group("effective depth")
    group.add_argument("--threshold", type=number_from_0, default=2.0, help="nats")
    group.add_argument("--direction", choices=("final_decoded", "decoded_final"), default="final_decoded",
                       help="KL(final ‖ decoded), the study's, or the other")  # fmt: skip
    args = parse_checkpoints(parser, argv)

    from looplit.eval.lens import lens

    rows, results = [], []
    for path in args.ckpt_path:
        model = load_checkpoint(path, args)
        batches = validation_batches(path, model, args)
        result = lens(model, batches, threshold=args.threshold, direction=args.direction)
        rows.append({**run_fields(path, model), **result.to_dict()})
        results.append(result)
    first, second = args.direction.split("_")
    tokens = " / ".join(f"{tokens:,}" for tokens in sorted({result.tokens for result in results}))
    said = f"KL({first} ‖ {second}) over {tokens} tokens; threshold of effective depth {args.threshold:g} nats"
    show_rows(args, rows, f"{_block_table(results[0]) if len(rows) == 1 else _ladder_table(rows)}\n{said}")
    draw_plot(args, lambda: _ladder_figure(rows) if len(rows) > 1 else _lens_figure(rows[0]["family"], results[0]))
    return 0


def _block_table(result: LensResult) -> str:
    rows = [["", "block", "KL", "agreement", "loss", "RMS", "update"]] + [
        [f"{i + 1}{'*' if i + 1 == result.effective_depth else ' '}", result.labels[i], f"{result.kl[i]:.4f}",
         f"{result.agreement[i]:.4f}", f"{result.loss[i]:.4f}", f"{result.rms[i]:.3g}", f"{result.update[i]:.3g}"]
        for i in range(result.executed_depth)
    ]  # fmt: skip
    depth = f"* effective depth {result.effective_depth} of {result.executed_depth} executed blocks"
    return f"{columns(rows, '>')}\n{depth}"


def _ladder_table(rows: list[dict[str, Any]]) -> str:
    headers = ["family", "depth", "passes", "executed", "effective", "training FLOPs", "loss"]
    return table(headers, [
        [row["family"], str(row.get("depth", "–")), str(row["passes"]), str(row["executed_depth"]),
         str(row["effective_depth"]), f"{row['training_flops']:.4g}", f"{row['blocks'][-1]['loss']:.4f}"]
        for row in rows
    ])  # fmt: skip


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
