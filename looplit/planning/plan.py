"""What a config file will do, worked out without building the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from looplit.accounting.recurrence import Growth, RandomPasses, Recurrence, as_list, growth_step
from looplit.errors import InputError, require
from looplit.model.config import check_growth
from looplit.planning.resources import (
    RECOMPUTATION,
    TYPICAL_MFU,
    Machine,
    Precision,
    memory_per_device,
    peak_flops,
    training_seconds,
)
from looplit.planning.strategy import is_sharded, read_strategy
from looplit.recipes.resolve import recipe_of, run_of
from looplit.recipes.run import BATCH_TOKENS, Run
from looplit.recipes.training import ModelRecipe, check_batch

PRECISIONS: dict[Any, Precision] = {
    None: "32-true", 32: "32-true", "32": "32-true", "bf16": "bf16-mixed",
    **dict(zip(get_args(Precision), get_args(Precision), strict=True)),
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """A run and its machine.

    Args:
        run: Complete but for data.
        machine: Devices, micro-batch, sharding, precision.
    """

    run: Run
    machine: Machine

    def to_dict(self, device: str | float = "h100", mfu: float = TYPICAL_MFU) -> dict[str, Any]:
        """The run's JSON keys, and FLOPs per phase, memory per device in bytes and the expected time.

        Args:
            device: A name that `peak_flops` knows, or FLOPs per second.
            mfu: Model FLOPs utilisation to expect.
        """
        peak = peak_flops(device) if isinstance(device, str) else device
        again = RECOMPUTATION if self.machine.activation_checkpointing else 1.0
        flops = self.run.training_flops * again
        return {
            **self.run.to_dict(),
            "phase_flops": [self.run.phase_flops(phase) for phase in self.run.phases],
            "device_count": self.machine.devices,
            "memory_bytes": memory_per_device(self.run, self.machine),
            "phase_memory_bytes": [
                memory_per_device(self.run, self.machine, max(phase.choices))["total"] for phase in self.run.phases
            ],
            "micro_batch": self.machine.micro_batch,
            "accumulation": self.accumulation,
            "expected_train_seconds": training_seconds(flops, self.machine.devices, peak, mfu),
        }

    @property
    def accumulation(self) -> int:
        """Micro-batches of an optimizer step."""
        return self.run.batch_tokens // (self.machine.devices * self.machine.micro_batch * self.run.backbone.context)

    @property
    def notes(self) -> list[str]:
        """What a reader should know before starting, one line each."""
        notes = []
        if self.run.depth is not None and self.run.batch_tokens != BATCH_TOKENS:
            notes.append(f"the batch has {self.run.batch_tokens:,} tokens; the recipes were tuned at {BATCH_TOKENS:,}")
        if any(self.run.backbone.cuts_prelude(k) for phase in self.run.phases for k in phase.choices):
            notes.append("no boundary reads the prelude: where passes go untrained, prelude and embedding do too")
        if self.run.recurrence.random:
            notes.append(f"training FLOPs replay the drawn passes; expected: {self.run.expected_training_flops:.7g}")
        return notes


def plan_config(config: Mapping[str, Any], devices: int | None = None) -> Plan:
    """The plan of a config, given as nested plain values.

    Args:
        config: As `looplit.planning.config_files.read_configs` gives it.
        devices: In all; default those that the config names (1 for "auto" or -1).

    Raises:
        InputError: Something is missing or breaks a rule.
    """
    model, data, trainer = (_section(config, name) for name in ("model", "data", "trainer"))
    class_path, given = _subclass(model, "model")
    _, data_args = _subclass(data, "data") if data else ("", {})
    planned = _planned_steps(given, trainer)
    context = data_args.get("context") or given.get("context") or 2048
    accumulation = trainer.get("accumulate_grad_batches", 1)
    require(
        _is_count(accumulation), "trainer.accumulate_grad_batches", accumulation, "must be a whole number from 1 up"
    )
    strategy, choices = read_strategy(trainer.get("strategy"))
    sharded, unit = is_sharded(strategy), choices.get("activation_checkpointing")
    machine = Machine(
        devices=_devices(trainer) if devices is None else devices,
        micro_batch=data_args.get("batch_size") or 16,
        sharded=sharded,
        precision=_precision(trainer.get("precision")),
        replicas=choices.get("replicas", 1),
        activation_checkpointing="block" if unit is True else unit or None,
        whole_gradients=sharded and accumulation > 1 and not choices.get("reduce_every_micro_batch"),
    )
    recipe = recipe_of(class_path, {**given, "context": context})
    batch_tokens = machine.devices * machine.micro_batch * accumulation * context
    check_batch(recipe, batch_tokens)
    steps = min(planned, trainer.get("max_steps") or planned)
    run = run_of(
        recipe,
        planned,
        recurrence=_recurrence(recipe, trainer.get("callbacks") or [], planned, steps),
        steps=steps,
        batch_tokens=batch_tokens,
        pool_tokens=data_args.get("pool_tokens"),
    )
    return Plan(run, machine)


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name) or {}
    if isinstance(section, str):
        section = {"class_path": section}
    require(isinstance(section, Mapping), name, section, "must be a section with entries")
    return section


def _subclass(section: Mapping[str, Any], name: str) -> tuple[str, dict[str, Any]]:
    require("class_path" in section, f"{name}.class_path", None, "must name a class")
    return section["class_path"], dict(section.get("init_args") or {})


def _planned_steps(given: Mapping[str, Any], trainer: Mapping[str, Any]) -> int:
    """Planned optimizer steps: the model's `steps`, else the Trainer's `max_steps`."""
    steps = given.get("steps") or trainer.get("max_steps")
    require(isinstance(steps, int) and steps >= 1, "trainer.max_steps", steps, "the plan needs the length of the run")
    return int(steps)  # type: ignore[arg-type]


def _devices(trainer: Mapping[str, Any]) -> int:
    """Devices on all nodes. Several are listed by number, as [0, 1] or "0,1"."""
    given, nodes = trainer.get("devices", "auto"), trainer.get("num_nodes", 1)
    require(_is_count(nodes), "trainer.num_nodes", nodes, "must be a whole number from 1 up")
    devices = given.strip(" ,").split(",") if isinstance(given, str) and "," in given else given
    if devices in ("auto", -1, "-1"):
        devices = 1
    elif isinstance(devices, list):
        listed = all(str(device).strip().isdecimal() for device in devices)
        devices = len(devices) if listed else None
    elif isinstance(devices, str) and devices.isdecimal():
        devices = int(devices)
    require(_is_count(devices), "trainer.devices", given, "must be a number from 1 up, auto, -1, or a list of numbers")
    return int(devices * nodes)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _precision(given: Any) -> Precision:
    if given not in PRECISIONS:
        raise InputError(f"trainer.precision = {given!r}: must be one of {', '.join(get_args(Precision))}")
    return PRECISIONS[given]


def _recurrence(recipe: ModelRecipe, callbacks: Any, planned: int, steps: int) -> Recurrence:
    """K over the `steps` that the Trainer takes; growth fractions are shares of the `planned` ones."""
    growths: tuple[Growth, ...] = ()
    drawn, any_target = None, False
    for callback in callbacks if isinstance(callbacks, list) else [callbacks]:
        name, args = _subclass({"class_path": callback} if isinstance(callback, str) else callback, "callback")
        name = name.rpartition(".")[2]
        if name == "ModelGrowth":
            require(not growths, "trainer.callbacks", "ModelGrowth", "give several growths to one, as lists")
            any_target = bool(args.get("any_target"))
            growths = _growths(recipe, args, planned)
        elif name == "RandomRecurrence":
            drawn = _random(args)
    grows = recipe.growth_plan is None or bool(growths)
    require(grows, "trainer.callbacks", callbacks, f"{recipe.name} trains with growth: add ModelGrowth")
    backbone = recipe.backbone
    passes, stored = backbone.passes, backbone.stored_cores or 1
    for growth in growths:
        require(0 < growth.step < planned, "step", growth.step, f"growth must fall inside the run of {planned} steps")
        check_growth(passes, growth.passes, tied=backbone.tied, stored_cores=stored, any_target=any_target)
        passes = growth.passes
    taken = tuple(growth for growth in growths if growth.step < steps)
    return Recurrence(backbone.passes, taken, drawn if taken == growths else None)


def _random(args: Mapping[str, Any]) -> RandomPasses:
    for name in ("passes", "evaluate_at"):
        require(name in args, f"RandomRecurrence.{name}", None, "must be given")
    return RandomPasses(tuple(args["passes"]), args["evaluate_at"], args.get("seed") or 0)


def _growths(recipe: ModelRecipe, args: Mapping[str, Any], steps: int) -> tuple[Growth, ...]:
    passes, at, fractions = (as_list(args.get(name)) for name in ("passes", "step", "fraction"))
    if passes is None:
        if recipe.growth_plan is None:
            raise InputError(f"passes = None: {recipe.name} has no growth plan; say passes and fraction")
        passes, fractions = ([value] for value in recipe.growth_plan)
    if at is None:
        fractions = fractions or []
        at = [growth_step(fraction, steps) for fraction in fractions]
    else:
        fractions = [None] * len(at)
    require(len(at) == len(passes), "passes", passes, "needs one step or fraction for each growth")
    events = sorted(zip(at, passes, fractions, strict=True), key=lambda event: event[0])
    return tuple(Growth(k, g, fraction) for g, k, fraction in events)
