"""`python -m looplit passes`: what more or fewer passes cost than trained."""

from __future__ import annotations

from typing import Any

from looplit.commands.arguments import integers
from looplit.commands.checkpoints import (
    checkpoint_parser,
    load_checkpoint,
    parse_checkpoints,
    run_fields,
    show_rows,
    validation_batches,
)
from looplit.commands.output import draw_plot
from looplit.wording import counted, table


def passes_main(argv: list[str]) -> int:
    """`passes --ckpt_path X [Y …] --passes 1,2,4,8,16`: loss at other numbers of passes, and above the trained one's.

    An untied checkpoint has losses up to the cores that were trained when it was saved; more are refused.

    Raises:
        InputError: Wrong input, in one line.
    """
    parser = checkpoint_parser(
        "passes", "Loss of checkpoints at other numbers of passes than trained.", "loss by passes"
    )
    group = parser.add_argument_group("passes")
    group.add_argument("--passes", required=True, type=integers, metavar="K,K,…", help="e.g. 1,2,4,8,16")
    args = parse_checkpoints(parser, argv)

    from looplit.eval.passes import PassesResult, awake_passes, check_passes, loss_at_passes

    rows, texts = [], []
    results: dict[str, PassesResult] = {}
    for path in args.ckpt_path:
        model = load_checkpoint(path, args)
        check_passes(model.backbone, args.passes, awake_passes(model))
        result = loss_at_passes(model.backbone, validation_batches(path, model, args), args.passes)
        rows.append({**run_fields(path, model), **result.to_dict()})
        results[model.recipe.name if len(args.ckpt_path) == 1 else str(path)] = result
        trained = counted(result.trained, "pass")
        texts.append(f"{path}: {model.recipe.name} trained at {trained}, {result.tokens:,} tokens")
        cells = [[str(k), f"{loss:.4f}", f"{result.excess(k):+.4f}"] for k, loss in result.losses.items()]
        texts.append(table(["passes", "loss", "- trained"], cells))
    show_rows(args, rows, "\n".join(texts))

    def draw() -> Any:
        from looplit.plots.lens import passes_figure

        return passes_figure(results)

    draw_plot(args, draw)
    return 0
