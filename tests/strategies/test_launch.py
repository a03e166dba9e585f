"""The sbatch script: what it starts, where it goes on from, when it is queued again."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest
import yaml


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """A folder with a `srun` that notes its arguments and ends with $SRUN_ENDS, and a `scontrol` that notes them."""
    for name, ends in (("srun", '"$SRUN_ENDS"'), ("scontrol", "0")):
        tool = tmp_path / "bin" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" >{name}.txt\nexit {ends}\n')
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def submit(root: Path, cluster: Path, *args: str, ends: int = 0) -> tuple[int, list[str], list[str]]:
    environment = {
        **os.environ, "PATH": f"{cluster / 'bin'}:{os.environ['PATH']}", "SRUN_ENDS": str(ends), "SLURM_JOB_ID": "17"
    }  # fmt: skip
    script = root / "configs" / "launch" / "two_nodes.sbatch"
    done = subprocess.run(["bash", str(script), *args], cwd=cluster, env=environment, check=False)
    requeued = cluster / "scontrol.txt"
    return (
        done.returncode,
        (cluster / "srun.txt").read_text().splitlines(),
        requeued.read_text().splitlines() if requeued.exists() else [],
    )


def test_it_asks_for_what_the_configuration_uses(root: Path) -> None:
    text = (root / "configs" / "launch" / "two_nodes.sbatch").read_text()
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", text, flags=re.MULTILINE))
    trainer = yaml.safe_load((root / "configs" / "untied_grow_d26.yaml").read_text())["trainer"]
    assert int(asked["nodes"]) == trainer["num_nodes"]
    assert int(asked["ntasks-per-node"]) == int(asked["gpus-per-node"]) == trainer["devices"]
    assert asked["signal"].startswith("TERM@")


def test_it_starts_the_run(root: Path, cluster: Path) -> None:
    ended, started, requeued = submit(root, cluster)
    command = "python -m looplit fit --config configs/untied_grow_d26.yaml"
    assert (ended, started, requeued) == (0, ["--kill-on-bad-exit=1", *command.split()], [])


def test_it_goes_on_from_the_newest_complete_checkpoint(root: Path, cluster: Path) -> None:
    for age, name in enumerate(("version_1/checkpoints/interrupted.ckpt", "version_0/checkpoints/last.ckpt")):
        folder = cluster / "runs" / "other" / name
        folder.mkdir(parents=True)
        os.utime(folder, (1_000_000 - age, 1_000_000 - age))
    (cluster / "runs/other/version_1/checkpoints/last.ckpt.part").mkdir()
    _, started, _ = submit(root, cluster, "configs/other.yaml", "--trainer.max_steps", "9")
    expected = "--config configs/other.yaml --ckpt_path runs/other/version_1/checkpoints/interrupted.ckpt"
    assert started[5:] == [*expected.split(), "--trainer.max_steps", "9"]


@pytest.mark.parametrize(("ends", "requeued"), [(143, ["requeue", "17"]), (1, []), (137, [])])
def test_only_a_signal_queues_it_again(root: Path, cluster: Path, ends: int, requeued: list[str]) -> None:
    code, _, asked = submit(root, cluster, ends=ends)
    assert (code, asked) == (ends, requeued)
