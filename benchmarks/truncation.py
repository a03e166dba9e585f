"""Time and memory of a training step truncated to the last B of T passes, against backpropagation through all of them.

    python benchmarks/truncation.py [--passes 8] [--trained 2] [--width 256] [--device cuda]

A step is a forward and a backward; the optimizer's part does not depend on (T, B). The core's part of a step is its
time above that of the same model without a core. By the law it is T + 2B units (truncation study): (8, 2) takes
(8 + 2·2)/(8 + 2·8) = 0.5 of (8, 8). Steps of the models take turns, and medians are compared. What a step keeps for
its backward grows with B, not with T. On a GPU branches run in bf16 and the peak of a step's memory is measured too.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from looplit.accounting.flops import loop_cost
from looplit.model import Backbone, BackboneConfig


def saved_bytes(model: Backbone, tokens_BT: Tensor) -> int:
    """Bytes that a forward keeps for the backward, each storage once and the parameters aside."""
    kept = {parameter.untyped_storage().data_ptr(): 0 for parameter in model.parameters()}
    alive = []  # so that no storage gets the address of another

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept.setdefault(storage.data_ptr(), storage.nbytes())
        alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss_of(model, tokens_BT)
    return sum(kept.values())


def loss_of(model: Backbone, tokens_BT: Tensor) -> Tensor:
    """The forward."""
    device = tokens_BT.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
        return model(tokens_BT, tokens_BT)


def train_step(model: Backbone, tokens_BT: Tensor) -> None:
    """Forward and backward; gradients are dropped."""
    loss_of(model, tokens_BT).backward()
    model.zero_grad()


def seconds(model: Backbone, tokens_BT: Tensor) -> float:
    """Wall-clock time of a step."""
    _wait(tokens_BT.device)
    start = time.perf_counter()
    train_step(model, tokens_BT)
    _wait(tokens_BT.device)
    return time.perf_counter() - start


def peak_bytes(model: Backbone, tokens_BT: Tensor) -> int | None:
    """Memory of a GPU at the peak of a step above that before it."""
    if tokens_BT.device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    train_step(model, tokens_BT)
    return torch.cuda.max_memory_allocated() - before


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def make_model(config: BackboneConfig, device: str) -> Backbone:
    """Every matrix random: products of zeros take less power, and so less time, on a GPU."""
    model = Backbone(config).to(device)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=config.width**-0.5)
    return model


def compare(settings: dict[str, Backbone], rest: Backbone, tokens_BT: Tensor, repeats: int) -> dict[str, Any]:
    """Step and core of every setting; `rest` is the model without a core."""
    models = {**settings, "rest": rest}
    saved = {name: saved_bytes(model, tokens_BT) for name, model in models.items()}
    for model in models.values():
        train_step(model, tokens_BT)  # the first step allocates
    peaks = {name: peak_bytes(model, tokens_BT) for name, model in models.items()}
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(repeats):
        for name, model in models.items():
            times[name].append(seconds(model, tokens_BT))
    step_s = {name: median(values) for name, values in times.items()}
    return {
        name: {
            "step_s": step_s[name],
            "core_s": step_s[name] - step_s["rest"],
            "saved_bytes": saved[name],
            "core_saved_bytes": saved[name] - saved["rest"],
            "peak_bytes": peaks[name],
        }
        for name in models
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=8, help="T")
    parser.add_argument("--trained", type=int, default=2, help="B of the truncated model; the other trains all passes")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--head_dim", type=int, default=64)
    parser.add_argument("--split", type=int, nargs=3, default=[2, 4, 2], help="blocks of prelude, core and coda")
    parser.add_argument("--vocabulary", type=int, default=257)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4, help="rows of tokens in a step")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args(arguments)

    def model_of(passes: int, trained: int) -> Backbone:
        prelude, core, coda = args.split
        config = BackboneConfig(
            width=args.width, heads=args.width // args.head_dim, prelude=prelude, core=core, coda=coda,
            passes=passes, trained_passes=trained, vocabulary=args.vocabulary, context=args.context,
        )  # fmt: skip
        return make_model(config, args.device)

    T, B = args.passes, args.trained
    truncated, full = f"({T},{B})", f"({T},{T})"
    rest = model_of(1, 1)
    rest.cores[0] = nn.ModuleList()
    tokens_BT = torch.randint(args.vocabulary, (args.batch, args.context), device=args.device)
    measured = compare({truncated: model_of(T, B), full: model_of(T, T)}, rest, tokens_BT, args.repeats)
    time_ratio, memory_ratio = (
        measured[truncated][key] / measured[full][key] for key in ("core_s", "core_saved_bytes")
    )
    law = loop_cost(T, B) / loop_cost(T, T)
    result = {
        **vars(args),
        "torch": torch.__version__,
        "measured": measured,
        "core_time_ratio": time_ratio,
        "core_time_ratio_by_law": law,
        "deviation": time_ratio / law - 1,
        "core_saved_ratio": memory_ratio,
        "core_saved_ratio_by_law": B / T,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
