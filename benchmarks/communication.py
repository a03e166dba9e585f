"""What the processes of a run exchange in one optimizer step under DDP and looplit_fsdp, and the least there can be.

python benchmarks/communication.py [--family untied_grow] [--depth 26] [--processes 16] [--micro_batches 8]
    [--replicas 2]
"""

from __future__ import annotations

import argparse

from looplit.recipes.growth_study import recipe
from looplit.strategies.communication import Collective, ddp_step, least_step, sharded_step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="untied_grow")
    parser.add_argument("--depth", type=int, default=26)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--micro_batches", type=int, default=8)
    parser.add_argument("--replicas", type=int, default=2, help="copies of the model, in a part of the table")
    args = parser.parse_args()
    if args.replicas < 1 or args.processes < 1 or args.processes % args.replicas:
        parser.error(f"replicas = {args.replicas}: must divide the {args.processes} processes")
    run = recipe(args.family, args.depth)
    print("| K | strategy | collectives of a step | number | GB sent by each process |\n|---|---|---|---|---|")
    for passes in dict.fromkeys((run.recurrence.passes, run.recurrence.max_passes)):
        for replicas, every in ((1, False), (1, True), (args.replicas, True)):
            name = "looplit_fsdp" + f", replicas {replicas}" * (replicas > 1) + ", reduce_every_micro_batch" * every
            step = sharded_step(
                run.backbone, passes, args.processes, args.micro_batches,
                optimizer=run.optimizer, replicas=replicas, reduce_every_micro_batch=every,
            )  # fmt: skip
            show(passes, name, step)
        show(passes, "ddp", ddp_step(run.backbone, args.processes))
        print(f"| {passes} | least | | | {least_step(run.backbone, passes, args.processes) / 1e9:.1f} |")


def show(passes: int, name: str, step: list[Collective]) -> None:
    """One line per kind of collective and one for all."""
    for part in step:
        print(f"| {passes} | {name} | {part.kind} | {part.number:,} | {part.sent / 1e9:.1f} |")
    if len(step) > 1:
        print(f"| {passes} | {name} | all | {sum(p.number for p in step):,} | {sum(p.sent for p in step) / 1e9:.1f} |")


if __name__ == "__main__":
    main()
