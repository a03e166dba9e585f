"""`python -m looplit evaluate`: CORE of checkpoints."""

from __future__ import annotations

import argparse
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from looplit.commands.arguments import CommandParser, count, natural, quantity, require_checkpoints
from looplit.commands.output import check_outputs, output_options, print_json
from looplit.errors import require
from looplit.wording import counted, table

if TYPE_CHECKING:
    from looplit.eval.core.bundle import Bundle
    from looplit.eval.core.evaluation import Plan
    from looplit.eval.core.record import FinishedTasks


def evaluate_main(argv: list[str]) -> int:
    """`evaluate --ckpt_path X …`: CORE of every checkpoint, as a table and as JSON.

    Raises:
        InputError: Wrong input, in one line.
    """
    args = evaluate_parser().parse_args(argv)
    require(bool(args.ckpt_path) or args.dry_run, "ckpt_path", None, "say which checkpoints to evaluate")
    require_checkpoints(args.ckpt_path)
    check_outputs(args, "out", "examples")
    from looplit.eval.core.processes import launched

    with launched():
        if args.dry_run:
            _dry_run(args)
        else:
            _Evaluation(args).run()
    return 0


def evaluate_parser() -> argparse.ArgumentParser:
    """The options of `evaluate`."""
    parser = CommandParser(
        "evaluate",
        "--ckpt_path CKPT …",
        description="CORE: 22 downstream tasks, accuracy and answer NLL. An interrupted evaluation goes on after its "
        "last finished task when run again. On several devices: torchrun --nproc-per-node N -m looplit evaluate …",
    )
    add = parser.add_argument_group("checkpoints").add_argument
    add("--ckpt_path", nargs="+", default=[], metavar="CKPT", help="checkpoints to evaluate")
    add("--tokenizer", help="default the one of the model's vocabulary size, gpt2 or bytes")
    add("--passes", type=count, metavar="K", help="K to evaluate at (default as saved)")
    add = parser.add_argument_group("suite").add_argument
    add("--bundle", metavar="FOLDER", help="of the suite (default the published one, fetched once)")
    add("--seeds", nargs="+", type=natural, default=[0, 1, 2], help="of the demonstrations (default 0 1 2)")
    add("--tasks", nargs="+", metavar="TASK", help="labels of the tasks (default all)")
    add("--limit", type=count, help="examples per task (default all)")
    add("--context", type=count, default=2048, help="tokens kept of longer prompts")
    add = parser.add_argument_group("work").add_argument
    add("--token_budget", type=count, default=16_384, help="tokens per batch")
    add("--device", help="cpu, cuda, … (default cuda where there is one)")
    add("--precision", choices=("bf16", "fp32"), help="of the matrix products (default bf16 on cuda, else fp32)")
    add("--dry_run", action="store_true", help="print what would be computed, and how long it takes")
    add("--tokens_per_second", type=quantity, help="of the forward pass, for the time of a dry run")
    add = output_options(parser).add_argument
    add("--out", type=Path, metavar="FILE", help="JSON; a list for several checkpoints (default CKPT.core.json)")
    add("--examples", type=Path, metavar="FILE", help="JSON lines, one per example")
    return parser


class _Evaluation:
    """One call of the command: its settings settled, and what all its checkpoints share."""

    def __init__(self, args: argparse.Namespace) -> None:
        from looplit.eval.core.fetch import find_bundle
        from looplit.eval.core.processes import rank_and_world
        from looplit.eval.device import chosen_device
        from looplit.modules.checkpoint import read_checkpoint

        for checkpoint in args.ckpt_path:
            # The last of several is not refused hours after the first has begun.
            read_checkpoint(checkpoint, "ckpt_path")
        self.args = args
        self.device = chosen_device(args.device)
        self.precision = args.precision or ("bf16" if self.device.type == "cuda" else "fp32")
        self.first = rank_and_world()[0] == 0
        self.bundle = find_bundle(args.bundle)
        self.plan = cache(self._plan)

    def run(self) -> None:
        """Evaluates every checkpoint; partial results stay on disk until all are done."""
        from looplit.eval.core.record import write_json

        results, records = [], []
        for n, checkpoint in enumerate(self.args.ckpt_path):
            record = self._record(n, checkpoint)
            records.append(record)
            results.append(self._evaluate(checkpoint, record))
            if self.first:
                several = len(self.args.ckpt_path) > 1 and self.args.out is not None
                write_json(self._out(checkpoint), results if several else results[-1])
        if self.first and self.args.json:
            print_json(results if len(results) > 1 else results[0])
        for record in records if self.first else ():
            record.remove()

    def _evaluate(self, checkpoint: str, record: FinishedTasks) -> dict[str, Any]:
        import torch

        from looplit.eval.core.evaluation import evaluate, tokenizer_of
        from looplit.eval.core.processes import from_first, gathered
        from looplit.eval.core.record import ExampleLines
        from looplit.eval.core.summary import table as scores
        from looplit.eval.passes import awake_passes, check_passes
        from looplit.modules import load

        args, known = self.args, record.results
        lines = ExampleLines(args.examples, checkpoint, known) if args.examples and self.first else None
        if lines is not None:
            known = {label: result for label, result in known.items() if label in lines.tasks}
        known = from_first(known)
        if known and self.first:
            print(f"{checkpoint}: going on, {len(known)} tasks are done", file=sys.stderr if args.json else sys.stdout)

        def keep(label: str, result: Any, found: list[Any]) -> None:
            everything = gathered(found) if args.examples else []
            if lines is not None:
                lines.add(label, everything)
            if self.first:
                record.add(label, result)

        model = load(checkpoint, self.device, "ckpt_path")
        if args.passes is not None:
            check_passes(model.backbone, [args.passes], awake_passes(model))
        vocabulary, context = model.config.vocabulary, model.config.context
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")
        with autocast:
            summary = evaluate(
                model, self.plan(args.tokenizer or tokenizer_of(vocabulary), min(context, args.context)),
                passes=args.passes, token_budget=args.token_budget, known=known, on_task=keep, progress=self.first,
            )  # fmt: skip
        if self.first and not args.json:
            print(f"\n{checkpoint}, {counted(summary['passes'], 'pass')}\n{scores(summary)}\n{self._out(checkpoint)}")
        return {**summary, "checkpoint": checkpoint, "precision": self.precision}

    def _plan(self, tokenizer: str, context: int) -> Plan:
        return _plan(self.args, self.bundle, tokenizer, context, progress=self.first)

    def _out(self, checkpoint: str) -> Path:
        return self.args.out or Path(f"{checkpoint}.core.json")

    def _record(self, n: int, checkpoint: str) -> FinishedTasks:
        from looplit.eval.core.record import FinishedTasks

        args, file = self.args, Path(checkpoint).stat()
        key = {
            "checkpoint": [checkpoint, file.st_size, file.st_mtime_ns], "suite_fingerprint": self.bundle.fingerprint,
            "tokenizer": args.tokenizer, "seeds": args.seeds, "limit": args.limit, "passes": args.passes,
            "context": args.context, "precision": self.precision,
        }  # fmt: skip
        suffix = f".{n}.part" if len(args.ckpt_path) > 1 and args.out else ".part"
        return FinishedTasks(Path(f"{self._out(checkpoint)}{suffix}"), key)


def _dry_run(args: argparse.Namespace) -> None:
    """Prints what every task takes, and the time it would take."""
    from looplit.eval.core.fetch import find_bundle

    tokenizer, context = args.tokenizer or "gpt2", args.context
    if args.ckpt_path:
        from looplit.eval.core.evaluation import tokenizer_of
        from looplit.modules import load

        config = load(args.ckpt_path[0], argument="ckpt_path").config
        tokenizer, context = args.tokenizer or tokenizer_of(config.vocabulary), min(context, config.context)
    plan = _plan(args, find_bundle(args.bundle), tokenizer, context, progress=True)
    work = {task.task.label: [len(task.questions), task.tokens(share=False), task.tokens()] for task in plan.tasks}
    work["all"] = total = [sum(counts) for counts in zip(*work.values(), strict=True)]
    if args.json:
        names = ("questions", "tokens", "tokens_after_sharing")
        print_json({label: dict(zip(names, counts, strict=True)) for label, counts in work.items()})
        return
    cells = [[label, *(f"{number:,}" for number in counts)] for label, counts in work.items()]
    print(table(["task", "questions", "tokens", "after sharing"], cells))
    if args.tokens_per_second is not None:
        checkpoints = max(1, len(args.ckpt_path))
        minutes = checkpoints * total[2] / args.tokens_per_second / 60
        print(f"about {minutes:,.1f} minutes for {checkpoints} checkpoint(s) at {args.tokens_per_second:,.0f} tokens/s")


def _plan(args: argparse.Namespace, bundle: Bundle, tokenizer: str, context: int, progress: bool) -> Plan:
    from looplit.eval.core.evaluation import plan_evaluation

    return plan_evaluation(
        bundle, tokenizer, seeds=args.seeds, tasks=args.tasks, limit=args.limit, context=context, progress=progress
    )
