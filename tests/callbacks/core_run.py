"""One of two processes that train and evaluate CORE: under DDP, then with sharded weights. Run by test_core.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.utils.data import DataLoader, TensorDataset

from looplit.callbacks.core import CoreEvaluation
from looplit.modules import Loop
from looplit.strategies import LoopLitFSDP

CONTEXT = 128


def run(strategy: Any, bundle: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The result of the evaluation at the end of training, and the weights."""
    torch.manual_seed(0)
    model = Loop(depth=3, width=32, heads=2, vocabulary=257, context=CONTEXT, passes=2, seed=0)
    tokens = torch.randint(0, 257, (24, 17))
    callback = CoreEvaluation(bundle, every_n_validations=1, seeds=[0], token_budget=200)
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, max_steps=2, val_check_interval=1, callbacks=[callback],
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    batches = DataLoader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size=4)
    trainer.fit(model, batches, batches)
    assert callback.result is not None
    weights = get_model_state_dict(model.backbone, options=StateDictOptions(full_state_dict=True))
    return callback.result, weights


if __name__ == "__main__":
    bundle, place = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    answers = {
        "ddp": run(DDPStrategy(process_group_backend="gloo"), bundle),
        "sharded": run(LoopLitFSDP(), bundle),
    }
    torch.save(answers, place / f"{torch.distributed.get_rank()}.pt")
    torch.distributed.destroy_process_group()
