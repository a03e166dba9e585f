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
    """A folder with tools that note their arguments: a `srun` that makes the folder $SRUN_SAVES, if it is told one, and
    ends with $SRUN_ENDS, and a `scontrol`."""
    saves = 'if [ -n "$SRUN_SAVES" ]; then mkdir -p "$SRUN_SAVES"; fi\nexit "$SRUN_ENDS"\n'
    for name, does in (("srun", saves), ("scontrol", "")):
        tool = tmp_path / "bin" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" >{name}.txt\n{does}')
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def submit(
    root: Path, cluster: Path, *args: str, ends: int = 0, saves: str = "", restarts: int = 0
) -> tuple[int, list[str], list[str]]:
    environment = {
        **os.environ, "PATH": f"{cluster / 'bin'}:{os.environ['PATH']}", "SRUN_ENDS": str(ends), "SRUN_SAVES": saves,
        "SLURM_JOB_ID": "17", "SLURM_CPUS_PER_TASK": "6", "SLURM_RESTART_COUNT": str(restarts),
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
    assert (ended, started, requeued) == (0, ["--kill-on-bad-exit=1", "--cpus-per-task=6", *command.split()], [])


def test_it_goes_on_from_the_newest_complete_checkpoint(root: Path, cluster: Path) -> None:
    for age, name in enumerate(("version_1/checkpoints/interrupted.ckpt", "version_0/checkpoints/last.ckpt")):
        folder = cluster / "runs" / "other" / name
        folder.mkdir(parents=True)
        os.utime(folder, (1_000_000 - age, 1_000_000 - age))
    (cluster / "runs/other/version_1/checkpoints/last.ckpt.part").mkdir()
    _, started, _ = submit(root, cluster, "configs/other.yaml", "--trainer.max_steps", "9")
    expected = "--config configs/other.yaml --ckpt_path runs/other/version_1/checkpoints/interrupted.ckpt"
    assert started[6:] == [*expected.split(), "--trainer.max_steps", "9"]


def test_a_kill_during_a_save_leaves_it_the_checkpoint_before(root: Path, cluster: Path) -> None:
    folder = cluster / "runs" / "untied_grow_d26" / "version_0" / "checkpoints"
    for name in ("last.previous.ckpt", "last.ckpt.part"):
        (folder / name).mkdir(parents=True)
    _, started, _ = submit(root, cluster)
    assert started[-2:] == ["--ckpt_path", "runs/untied_grow_d26/version_0/checkpoints/last.previous.ckpt"]


RUNS = "runs/untied_grow_d26/version_{}/checkpoints/{}.ckpt"
SAVED = RUNS.format(1, "interrupted")


@pytest.mark.parametrize(
    ("ends", "saves", "restarts", "queued_again"),
    [
        (143, SAVED, 0, True),  # at the time limit, or preempted
        (143, SAVED, 19, True),
        (143, SAVED, 20, False),
        (143, "", 0, False),  # a process failed, and SLURM ended the others: srun gives the highest exit code
        (143, RUNS.format(1, "last"), 0, False),  # the same, later
        (2, SAVED, 0, False),
        (1, "", 0, False),
        (137, "", 0, False),
        (0, "", 0, False),
    ],
)
def test_only_a_signal_queues_it_again(
    root: Path, cluster: Path, ends: int, saves: str, restarts: int, queued_again: bool
) -> None:
    (cluster / RUNS.format(0, "interrupted")).mkdir(parents=True)  # where the run goes on from
    os.utime(cluster / RUNS.format(0, "interrupted"), (1_000_000, 1_000_000))
    code, _, asked = submit(root, cluster, ends=ends, saves=saves, restarts=restarts)
    assert (code, asked) == (ends, ["requeue", "17"] if queued_again else [])
