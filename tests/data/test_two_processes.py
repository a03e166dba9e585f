"""Two processes of a real distributed run: they share each epoch, and a run with two resumes sees what one sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from looplit.data import Corpus

# Each process notes the numbers of the blocks it sees in a file of its own.
SCRIPT = """
import json, os, sys
import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from looplit.data import TokenData

corpus, out = sys.argv[1:]


class Recorder(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen = {"train": [], "validation": []}

    def note(self, split, batch):
        self.seen[split] += [int(bytes(block[1:].tolist())) for block in batch.int()]

    def training_step(self, batch):
        self.note("train", batch)
        return self.weight * batch.float().mean()

    def validation_step(self, batch):
        self.note("validation", batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(name, steps, checkpoint=None):
    model = Recorder()
    saver = ModelCheckpoint(out, filename=name, every_n_train_steps=steps, save_top_k=-1)
    pl.Trainer(
        max_steps=steps, accelerator="cpu", devices=2, strategy="ddp", logger=False, callbacks=[saver],
        num_sanity_val_steps=0, enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2,
    ).fit(model, TokenData(corpus, context=4, batch_size=4), ckpt_path=checkpoint, weights_only=True)
    return model.seen


seen = {"straight": fit("straight", 15)}
seen["parts"] = [
    fit("one", 4), fit("two", 6, f"{out}/one.ckpt"), fit("three", 15, f"{out}/two.ckpt"),
]
with open(f"{out}/{os.environ.get('LOCAL_RANK', '0')}.json", "w") as file:
    json.dump(seen, file)
"""


def test_a_distributed_run_resumes_exactly(numbered_once: Callable[..., Corpus], tmp_path: Path, root: Path) -> None:
    """6 steps to an epoch of 2 · 2 batches of 4 of 101 blocks."""
    (tmp_path / "script.py").write_text(SCRIPT)
    arguments = [str(tmp_path / "script.py"), str(numbered_once(101).folder), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for seen in ranks:
        assert seen["straight"]["train"] == [number for part in seen["parts"] for number in part["train"]]
        assert len(seen["straight"]["train"]) == 15 * 2 * 4
    for epoch in range(2):
        both = [number for seen in ranks for number in seen["straight"]["train"][48 * epoch : 48 * (epoch + 1)]]
        assert len(both) == len({*both}) == 96
    validated = sorted(number for seen in ranks for number in seen["straight"]["validation"])
    assert validated == sorted(2 * [*range(5000, 5011)])  # twice, each block in one process
