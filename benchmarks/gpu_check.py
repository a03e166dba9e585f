"""One GPU against the CPU: the same numbers, then tokens per second, model FLOPs utilisation and memory of Untied-2.

    python benchmarks/gpu_check.py [--minutes 7] [--depths 8,12] [--out FILE]

A run of each depth takes 65,536 tokens per optimizer step, one device's share among eight, through the Trainer and with
and without compiled blocks. What fails or finds no time left is named in its row; the table is written after every row.
`--tiny` runs all of it on the CPU in seconds, to check the script itself.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from looplit import Backbone, BackboneConfig, Untied
from looplit.accounting.flops import flops_per_token
from looplit.accounting.recurrence import Recurrence
from looplit.modules.meter import WARMUP_STEPS
from looplit.optim.directions import muon_direction
from looplit.planning.resources import DEVICES, MEMORY, Machine, memory_per_device
from looplit.recipes.lookup import recipe_of
from looplit.recipes.run import run_of

STEP_WINDOWS = 32  # of 2,048 tokens: a device's share of 524,288 among eight
TIMED_STEPS = 15
TINY: dict[str, Any] = {"width": 32, "heads": 1, "vocabulary": 257, "context": 32}


class Report:
    """Markdown lines, printed and written as they come.

    Args:
        out: File that holds them all after every line; None for none.
    """

    def __init__(self, out: Path | None) -> None:
        self.out = out
        self.lines: list[str] = []

    def add(self, *cells: object) -> None:
        """A table row of several cells, or a plain line of one."""
        line = str(cells[0]) if len(cells) == 1 else f"| {' | '.join(map(str, cells))} |"
        print(line, flush=True)
        self.lines.append(line)
        if self.out is not None:
            self.out.write_text("\n".join(self.lines) + "\n", encoding="utf-8")

    def head(self, *cells: str) -> None:
        """The head of a table."""
        self.add("")
        self.add(*cells)
        self.add(*["---"] * len(cells))


def hardware(device: torch.device) -> str:
    """Name and memory of the device, and the versions that a number depends on."""
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        name = f"{found.name}, {found.total_memory / 2**30:.0f} GiB"
    else:
        name = platform.processor() or platform.machine()
    return f"{name}; torch {torch.__version__}, lightning {L.__version__}"


def known_device(device: torch.device) -> str | None:
    """The entry of `DEVICES` that the GPU's name holds."""
    name = torch.cuda.get_device_name(device).lower() if device.type == "cuda" else ""
    return next((known for known in DEVICES if known in name), None)


# --- the same numbers


def small_model(device: torch.device) -> Backbone:
    """Width 256, 8 executed blocks; every matrix random, since zero ones would hide what follows them."""
    config = BackboneConfig(
        width=256, heads=2, prelude=2, core=2, coda=2, passes=2, tied=False, vocabulary=4099, context=512
    )
    model = Backbone(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
    return model.to(device)


def loss_and_gradients(model: Backbone, bf16: bool) -> dict[str, Tensor]:
    """Loss and gradients of one batch, on the CPU."""
    device = model.head.weight.device
    tokens = torch.randint(0, 4099, (2, 513), generator=torch.Generator().manual_seed(2)).to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        loss = model(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    named = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {"loss": loss.detach().cpu(), **{name: gradient.cpu() for name, gradient in named.items()}}


def difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> tuple[float, float]:
    """Difference of the losses, and the largest ‖a - b‖/‖b‖ of a parameter's gradient."""
    gradients = [float((a[name] - b[name]).norm() / b[name].norm()) for name in b if name != "loss"]
    return float((a["loss"] - b["loss"]).abs()), max(gradients)


def numerics(report: Report, device: torch.device) -> None:
    """The device against fp32 on the CPU. bf16 rounds a value by 2^-9, and a gradient passes through eight blocks."""
    torch.backends.cuda.matmul.allow_tf32 = False
    reference = loss_and_gradients(small_model(torch.device("cpu")), bf16=False)

    def against_reference(bf16: bool, bound: float, compiled: bool, unit: Any) -> tuple[object, ...]:
        model = small_model(device)
        model.activation_checkpointing = unit
        for block in model.blocks() if compiled else ():
            block.compile()
        loss, gradient = difference(loss_and_gradients(model, bf16), reference)
        return f"{loss:.1e}", f"{gradient:.1e}", f"{bound:g}", "ok" if gradient < bound else "LOOK"

    report.head("against fp32 on the CPU", "loss differs by", "gradients differ by at most", "expected below", "")
    attempt(report, ("fp32",), lambda: against_reference(False, 1e-4, False, None))
    attempt(report, ("bf16 autocast",), lambda: against_reference(True, 0.05, False, None))
    attempt(report, ("bf16, blocks run again",), lambda: against_reference(True, 0.05, False, "block"))
    if device.type == "cuda":
        attempt(report, ("bf16, compiled",), lambda: against_reference(True, 0.05, True, None))
    attempt(report, ("Muon's update",), lambda: muon_difference(device))


def muon_difference(device: torch.device) -> tuple[object, ...]:
    """‖a - b‖/‖b‖ of an update: its iterations run in bf16 on a GPU."""
    momentum = torch.randn(2, 512, 256, generator=torch.Generator().manual_seed(3))
    variance = torch.zeros(2, 512)
    expected = muon_direction(momentum, variance.clone())
    off = float((muon_direction(momentum.to(device), variance.to(device)).cpu() - expected).norm() / expected.norm())
    return "", f"{off:.1e}", "0.05", "ok" if off < 0.05 else "LOOK"


def attempt(report: Report, cells: tuple[object, ...], measure: Callable[[], tuple[object, ...]]) -> bool:
    """Adds the row of a measurement, in which a failure is named. Returns whether memory ended."""
    try:
        report.add(*cells, *measure())
        return False
    except Exception as error:  # whatever it is, the rest is to be measured
        report.add(*cells, f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}")
        return isinstance(error, torch.OutOfMemoryError)
    finally:
        gc.collect()  # what the failure's frames have held
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


# --- how fast


def windows(rows: int, settings: dict[str, Any]) -> Tensor:
    """Random tokens: the work does not depend on them."""
    context, vocabulary = settings.get("context", 2048), settings.get("vocabulary", 50257)
    return torch.randint(0, vocabulary, (rows, context + 1), generator=torch.Generator().manual_seed(4))


def micro_batches(depth: int, settings: dict[str, Any], room: float) -> Iterator[tuple[int, str]]:
    """Divisors of a step's windows that the memory estimate allows, the largest first, with the estimate in GiB."""
    step_tokens = STEP_WINDOWS * settings.get("context", 2048)
    given = {"depth": depth, **settings}
    run = run_of(recipe_of("Untied", given), 1, recurrence=Recurrence(2), steps=1, batch_tokens=step_tokens)
    for size in (32, 16, 8, 4, 2, 1):
        planned = memory_per_device(run, Machine(micro_batch=size))["total"]
        if planned < 0.85 * room:
            yield size, f"{planned / 2**30:.1f}"


def speed(
    depth: int, compile: bool, micro_batch: int, device: torch.device, settings: dict[str, Any]
) -> tuple[object, ...]:
    """Trains for a few steps: tokens per second, MFU, peak GiB, and the seconds before, compilation among them."""
    model = Untied(depth=depth, compile=compile, seed=1, **settings)
    steps, on_gpu = WARMUP_STEPS + TIMED_STEPS, device.type == "cuda"
    trainer = L.Trainer(
        accelerator="gpu" if on_gpu else "cpu", devices=1, precision="bf16-mixed", max_steps=steps,
        accumulate_grad_batches=STEP_WINDOWS // micro_batch, log_every_n_steps=0, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    trainer.fit(model, DataLoader(windows(steps * STEP_WINDOWS, settings), batch_size=micro_batch))  # type: ignore[arg-type]
    seconds = model.meter.train_seconds
    rate, peak = model.meter.timed_tokens / seconds, DEVICES.get(known_device(device) or "")
    return (
        f"{rate:,.0f}",
        "–" if peak is None else f"{rate * flops_per_token(model.config) / peak:.3f}",
        f"{torch.cuda.max_memory_allocated(device) / 2**30:.1f}" if on_gpu else "–",
        f"{time.perf_counter() - began - seconds:.0f}",
    )


def throughput(report: Report, device: torch.device, depths: list[int], settings: dict[str, Any], until: float) -> None:
    """A row per depth, with and without compiled blocks; where memory ends, another with a smaller micro-batch."""
    on_gpu = device.type == "cuda"
    room = torch.cuda.get_device_properties(device).total_memory if on_gpu else MEMORY["h100"]
    report.head("Untied-2", "compiled", "micro-batch", "planned GiB", "tokens/s", "MFU", "peak GiB", "start-up s")
    for depth, compile in itertools.product(depths, (False, True) if on_gpu else (False,)):
        for micro_batch, planned in micro_batches(depth, settings, room):
            row = f"d{depth}", compile, micro_batch, planned
            if time.monotonic() > until:
                report.add(*row, "no time left")
                break
            measure = partial(speed, depth, compile, micro_batch, device, settings)
            if not attempt(report, row, measure):
                break


def main(argv: list[str] | None = None) -> int:
    """Runs the checks and returns the exit code: 0, or 1 where a number is off or a row has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=7, help="after which nothing more is started")
    parser.add_argument("--depths", default="8,12", help="of Untied-2")
    parser.add_argument("--out", type=Path, help="file for the tables")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on the CPU")
    args = parser.parse_args(argv)
    warnings.filterwarnings("ignore")
    until = time.monotonic() + 60 * args.minutes
    if not args.tiny and not torch.cuda.is_available():
        print("gpu_check: there is no GPU; --tiny checks the script on the CPU", file=sys.stderr)
        return 2
    device = torch.device("cpu" if args.tiny else "cuda:0")
    report = Report(args.out)
    report.add(f"Hardware: {hardware(device)}")
    numerics(report, device)
    depths = [3] if args.tiny else [int(depth) for depth in args.depths.split(",")]
    throughput(report, device, depths, TINY if args.tiny else {}, until)
    bad = ("LOOK", "Error", "no time left")
    return int(any(word in line for line in report.lines for word in bad))


if __name__ == "__main__":
    sys.exit(main())
