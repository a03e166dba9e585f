"""Runs with a boundary and an algorithm of one's own on one process and on two: run by tests/test_own_parts.py.

Usage: own_parts_run.py FOLDER
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from helpers.own_parts import GatedInjection, Lion

sys.path.insert(0, str(Path(__file__).parent))

from sharded_run import AFTER, processes, train

OWN: dict[str, Any] = {
    "boundary": GatedInjection, "coda_boundary": "helpers.own_parts.GatedInjection", "optimizer": Lion,
    "learning_rate": 0.002,
}  # fmt: skip


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    run = partial(partial, train, folder, **OWN)
    muon = {"optimizer": "muon", "learning_rate": 0.02, "stop": AFTER}
    processes(1, run("plain"), run("plain_muon", **muon))
    processes(
        2,
        run("fsdp", "looplit_fsdp", built_on="meta", saves={AFTER: "after"}),
        run("fsdp_muon", "looplit_fsdp", **muon),
        run("resumed", "looplit_fsdp", start="after", built_on="meta"),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
