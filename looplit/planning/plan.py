"""What a config file will do, worked out without building the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from looplit.accounting.growth import GrowthRequest
from looplit.accounting.recurrence import REWARM_STEPS, Growth, RandomPasses, Recurrence
from looplit.errors import InputError, require
from looplit.model.config import CONTEXT
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
from looplit.recipes.lookup import recipe_of
from looplit.recipes.run import Run, run_of
from looplit.recipes.study import ModelRecipe

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
        settings: What else a config says that a record holds.
    """

    run: Run
    machine: Machine
    settings: Mapping[str, Any] = field(default_factory=dict)

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
            **self.settings,
            "phase_flops": [self.run.phase_flops(phase) for phase in self.run.phases],
            "precision": self.machine.precision,
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
        notes = self.run.study.notes(self.run)
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
    context = data_args.get("context") or given.get("context") or CONTEXT
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
    recipe.check_batch(batch_tokens)
    steps = min(planned, trainer.get("max_steps") or planned)
    run = run_of(
        recipe,
        planned,
        recurrence=_recurrence(recipe, trainer.get("callbacks") or [], planned, steps),
        steps=steps,
        batch_tokens=batch_tokens,
        pool_tokens=data_args.get("pool_tokens"),
    )
    return Plan(run, machine, _other_settings(config, data_args, trainer))


def _other_settings(config: Mapping[str, Any], data: Mapping[str, Any], trainer: Mapping[str, Any]) -> dict[str, Any]:
    """What a config says beside run and machine that a record holds, under the record's names."""
    said = {
        "seed": config.get("seed_everything"),
        "data_seed": data.get("seed"),
        "recut": data.get("recut"),
        "gradient_clip_val": trainer.get("gradient_clip_val"),
        "gradient_clip_algorithm": trainer.get("gradient_clip_algorithm"),
        "validation_limit": trainer.get("limit_val_batches"),
        "training_limit": trainer.get("limit_train_batches"),
    }
    return {name: value for name, value in said.items() if value is not None}


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
    drawn, backbone, rewarm = None, recipe.backbone, REWARM_STEPS
    for callback in callbacks if isinstance(callbacks, list) else [callbacks]:
        name, args = _subclass({"class_path": callback} if isinstance(callback, str) else callback, "callback")
        name = name.rpartition(".")[2]
        if name == "ModelGrowth":
            require(not growths, "trainer.callbacks", "ModelGrowth", "give several growths to one, as lists")
            request = GrowthRequest(**{name: args.get(name) for name in ("passes", "step", "fraction")},
                                    any_target=bool(args.get("any_target")))  # fmt: skip
            rewarm = args.get("rewarm_steps", REWARM_STEPS)
            growths = request.events(recipe.growth_plan, planned, recipe.name)
            request.check(growths, planned, passes=backbone.passes, tied=backbone.tied,
                          stored_cores=backbone.stored_cores or 1)  # fmt: skip
        elif name == "RandomRecurrence":
            drawn = _random(args)
    grows = recipe.growth_plan is None or bool(growths)
    require(grows, "trainer.callbacks", callbacks, f"{recipe.name} trains with growth: add ModelGrowth")
    taken = tuple(growth for growth in growths if growth.step < steps)
    return Recurrence(backbone.passes, taken, drawn if taken == growths else None, rewarm)


def _random(args: Mapping[str, Any]) -> RandomPasses:
    for name in ("passes", "evaluate_at"):
        require(name in args, f"RandomRecurrence.{name}", None, "must be given")
    return RandomPasses(tuple(args["passes"]), args["evaluate_at"], args.get("seed") or 0)
