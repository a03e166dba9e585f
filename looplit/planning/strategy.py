"""The strategy that a config file names, read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from looplit.errors import require

SHARDED_STRATEGY, SHARDED_CLASS = "looplit_fsdp", "LoopLitFSDP"
FSDP1_REASON = f"FSDP1 flattens parameters, so that Muon cannot see whole matrices; take {SHARDED_STRATEGY} (FSDP2)"

# Settings of `LoopLitFSDP` and their types: the plan cannot ask the class, which needs torch.
SHARDED_SETTINGS: dict[str, tuple[type, ...]] = {
    "replicas": (int,), "save_distributed_checkpoint": (bool,), "activation_checkpointing": (bool, str),
    "reduce_every_micro_batch": (bool,), "process_group_backend": (str,), "timeout_minutes": (int, float),
}  # fmt: skip
OPTIONAL_SETTINGS = ("process_group_backend",)
FSDP1 = ("FSDPStrategy", "fsdp_cpu_offload")  # Lightning's class and registered name


def read_strategy(given: Any) -> tuple[str, Mapping[str, Any]]:
    """Short name and settings of a strategy, as a config file has it.

    Raises:
        InputError: FSDP1, another name like those of FSDP2, or a wrong setting of `LoopLitFSDP`.
    """
    section: Mapping[str, Any] = given if isinstance(given, Mapping) else {"class_path": given or "auto"}
    name, settings = section.get("class_path", ""), section.get("init_args") or {}
    short = str(name).rpartition(".")[2]
    require(short not in FSDP1, "trainer.strategy", name, FSDP1_REASON)
    known = "fsdp" not in short.lower() or short in ("fsdp", SHARDED_STRATEGY, SHARDED_CLASS)
    require(known, "trainer.strategy", name, f"there is no such strategy; take {SHARDED_STRATEGY}")
    for setting, value in settings.items() if short == SHARDED_CLASS else ():
        require(
            setting in SHARDED_SETTINGS, "trainer.strategy", setting,
            f"{SHARDED_CLASS} has no such setting; it has {', '.join(SHARDED_SETTINGS)}",
        )  # fmt: skip
        kinds = SHARDED_SETTINGS[setting]
        fits = (value is None and setting in OPTIONAL_SETTINGS) or type(value) in kinds
        require(fits, setting, value, f"must be {' or '.join(kind.__name__ for kind in kinds)}")
    minutes = settings.get("timeout_minutes", 30)
    require(short != SHARDED_CLASS or minutes > 0, "timeout_minutes", minutes, "must be above 0")
    return short, settings


def is_sharded(name: str) -> bool:
    """Whether a short name of a strategy is that of FSDP2.

    >>> is_sharded("fsdp"), is_sharded("LoopLitFSDP"), is_sharded("ddp")
    (True, True, False)
    """
    return "fsdp" in name.lower() or name == "ModelParallelStrategy"
