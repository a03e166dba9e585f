"""Two processes read the lens and other passes under DDP and FSDP2: run by test_effective_depth.py.

Usage: depth_run.py OUT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import Strategy
from torch import Tensor
from torch.utils.data import DataLoader

import looplit
from looplit.callbacks import EffectiveDepth, TestTimePasses
from looplit.strategies import LoopLitFSDP

TOKENS = 7 * 16  # an odd number of rows for two processes


def model() -> looplit.Loop:
    made = looplit.Loop(depth=3, width=32, heads=1, vocabulary=64, context=16, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return made.eval()


def windows() -> Tensor:
    return torch.randint(0, 64, (9, 17), generator=torch.Generator().manual_seed(3))


def validate(strategy: str | Strategy, devices: int) -> dict[str, Any]:
    """What both callbacks make of a validation."""
    depth, passes = EffectiveDepth(tokens=TOKENS, threshold=0.5), TestTimePasses([1, 2, 4], tokens=TOKENS)
    trainer = L.Trainer(
        accelerator="cpu", devices=devices, strategy=strategy, callbacks=[depth, passes], logger=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.validate(model(), DataLoader(windows(), batch_size=4), verbose=False)  # type: ignore[arg-type]
    assert depth.result is not None
    assert passes.result is not None
    return {"lens": depth.result.to_dict(), "passes": passes.result.to_dict()}


def main(out: Path) -> None:
    answer = {"ddp": validate("ddp", 2), "fsdp2": validate(LoopLitFSDP(), 2)}
    if dist.get_rank() == 0:
        out.write_text(json.dumps(answer))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
