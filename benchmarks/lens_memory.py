"""Memory that the logit lens allocates above the weights, against a plain validation step of the same batch.

    python benchmarks/lens_memory.py [--width 256] [--rows 2] [--device cpu] [--json FILE]

A model of 24 executed blocks and 50,304 columns reads rows of 2,048 tokens. Both peaks are of live tensors: PyTorch's
allocator counts them on a GPU, its profiler on the CPU, so that other programs do not disturb them. The lens may take
1.5 times the validation step's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from looplit.eval.lens import lens
from looplit.model import Backbone, BackboneConfig

CONTEXT = 2048
LIMIT = 1.5


def peak_bytes(run: Callable[[], Any], device: torch.device) -> int:
    """Most bytes that tensors take at once, above those that are there before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    now = most = 0
    for event in profiler.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256, help="of the residual stream (default %(default)s)")
    parser.add_argument("--rows", type=int, default=2, help=f"of {CONTEXT:,} tokens (default %(default)s)")
    parser.add_argument("--device", default="cpu", help="default %(default)s")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    args = parser.parse_args()
    device = torch.device(args.device)
    config = BackboneConfig(
        width=args.width, heads=2, prelude=8, core=4, coda=8, passes=2, vocabulary=50_304, context=CONTEXT
    )
    model = Backbone(config).to(device).eval()
    windows = torch.randint(0, config.vocabulary, (args.rows, CONTEXT + 1), device=device)
    inputs, targets = windows[:, :-1], windows[:, 1:]
    with torch.no_grad():
        model(inputs[:, :8])  # what a first call keeps for good is neither's
        step = peak_bytes(lambda: model(inputs, targets, reduction="none"), device)
    read = peak_bytes(lambda: lens(model, [(inputs, targets)]), device)
    numbers = {
        "executed_blocks": model.executed_depth,
        "columns": config.padded_vocabulary,
        "tokens": inputs.numel(),
        "width": args.width,
        "validation_step_mib": step / 2**20,
        "lens_mib": read / 2**20,
        "ratio": read / step,
        "limit": LIMIT,
        "device": str(device),
        "torch": torch.__version__,
    }
    print(json.dumps(numbers, indent=2))
    if args.json is not None:
        args.json.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
