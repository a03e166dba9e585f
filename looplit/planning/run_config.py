"""A run as a config file: complete YAML with a header that says what it is for, how deep it is and how to start it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import yaml

from looplit.errors import InputError, require
from looplit.planning.resources import Machine, Precision, memory_per_device
from looplit.planning.strategy import SHARDED_CLASS, SHARDED_STRATEGY
from looplit.recipes.lookup import module_arguments
from looplit.recipes.run import Run, batch_windows
from looplit.wording import counted

DEVICE_BYTES = 80 * 10**9  # an H100
FILL = 0.75  # share of it that the estimate may take
STATE_FILL = 0.4  # share that parameters, gradients and optimizer state may take before they are sharded
VALIDATE_EVERY_STEPS = 250
CORPORA = {"fineweb": ("FineWeb", "data/fineweb"), "fineweb_edu": ("FineWebEdu", "data/fineweb_edu")}


@dataclass(frozen=True)
class Layout:
    """Data and machine of a config file.

    Args:
        devices: Per node.
        nodes: Of the cluster.
        micro_batch: Sequences per device and forward; default the most that the memory estimate allows.
        precision: As Lightning names it.
        corpus: A key of `CORPORA`.
        folder: Of the prepared corpus; default the corpus' own.
        seed: Of the run.
    """

    devices: int = 8
    nodes: int = 1
    micro_batch: int | None = None
    precision: Precision = "bf16-mixed"
    corpus: str = "fineweb"
    folder: str | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("devices", "nodes"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        require(self.corpus in CORPORA, "corpus", self.corpus, f"must be one of {', '.join(CORPORA)}")

    @property
    def world(self) -> int:
        """Devices in all."""
        return self.devices * self.nodes


def accumulation(batch_tokens: int, devices: int, micro_batch: int, context: int) -> int:
    """Micro-batches per optimizer step: batch tokens / (devices · micro-batch · context).

    Raises:
        InputError: It does not divide.

    >>> accumulation(524_288, 16, 4, 2048)
    4
    """
    together = devices * micro_batch * context
    require(
        batch_tokens % together == 0, "batch_tokens", batch_tokens,
        f"must be a multiple of devices · micro-batch · context = {devices} · {micro_batch} · {context} = {together}",
    )  # fmt: skip
    return batch_tokens // together


def place(run: Run, layout: Layout) -> Machine:
    """The machine of a layout: sharded if the state is large, with the largest micro-batch that fits and divides.

    On several nodes a sharded model has one copy per node if that fits, so that nodes exchange gradients alone. Blocks
    run again in the backward pass, a third more compute, only where nothing fits otherwise.

    Raises:
        InputError: The batch does not divide over the devices, or nothing fits.
    """
    single = Machine(layout.world, 1, False, layout.precision)
    memory = memory_per_device(run, single)
    state = memory["parameters"] + memory["gradients"] + memory["optimizer_state"]
    sharded = layout.world > 1 and state > STATE_FILL * DEVICE_BYTES
    windows = batch_windows(run.batch_tokens, run.backbone.context)
    accumulation(run.batch_tokens, layout.world, layout.micro_batch or 1, run.backbone.context)
    per_device = windows // layout.world
    sizes = [size for size in range(per_device, 0, -1) if per_device % size == 0]
    ways = itertools.product((None, "block"), dict.fromkeys((layout.nodes, 1))) if sharded else [(None, 1)]
    for unit, replicas in ways:
        for micro_batch in sizes if layout.micro_batch is None else [layout.micro_batch]:
            machine = Machine(layout.world, micro_batch, sharded, layout.precision, replicas, unit)
            if _fits(run, machine):
                whole = replace(machine, whole_gradients=sharded and micro_batch < per_device)
                return whole if replicas == 1 and _fits(run, whole) else machine
    if layout.micro_batch is not None:
        return Machine(layout.world, layout.micro_batch, sharded, layout.precision)
    raise InputError(
        f"nodes = {layout.nodes}: one sequence does not fit {DEVICE_BYTES // 10**9} GB per device; "
        "take more nodes, or say the micro-batch"
    )


def _fits(run: Run, machine: Machine) -> bool:
    return memory_per_device(run, machine)["total"] <= FILL * DEVICE_BYTES


def config_dict(run: Run, layout: Layout) -> dict[str, Any]:
    """The config file of a run, as nested plain values."""
    machine = place(run, layout)
    steps = accumulation(run.batch_tokens, layout.world, machine.micro_batch, run.backbone.context)
    corpus, folder = CORPORA[layout.corpus]
    data: dict[str, Any] = {
        "folder": layout.folder or folder,
        "context": run.backbone.context,
        "batch_size": machine.micro_batch,
        "workers": 2,
    }
    if run.pool_tokens is not None:
        data["pool_tokens"] = run.pool_tokens
    trainer: dict[str, Any] = {
        "accelerator": "gpu",
        "devices": layout.devices,
        "num_nodes": layout.nodes,
        "strategy": _strategy(run, machine, steps),
        "precision": layout.precision,
        "max_steps": run.steps,
        "accumulate_grad_batches": steps,
        "val_check_interval": VALIDATE_EVERY_STEPS * steps,
        "check_val_every_n_epoch": None,
    }
    callbacks = _callbacks(run)
    if callbacks:
        trainer["callbacks"] = callbacks
    return {
        "seed_everything": layout.seed,
        "model": {"class_path": run.class_path, "init_args": {**module_arguments(run), "compile": True}},
        "data": {"class_path": corpus, "init_args": data},
        "trainer": trainer,
    }


def config_text(run: Run, layout: Layout, *, claim: str, command: str, name: str) -> str:
    """The config file with its header.

    Args:
        run: What to train.
        layout: On what.
        claim: The sentence the run serves.
        command: The recipe command that made the file.
        name: Path within `configs/`.
    """
    lines = [
        *_header(run),
        f"Claim: {claim}",
        f"Run:  python -m looplit fit --config configs/{name}",
        f"Made: {command}",
    ]
    body = yaml.dump(config_dict(run, layout), Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return "".join(f"# {line}\n" for line in lines) + body


def _strategy(run: Run, machine: Machine, micro_batches: int) -> Any:
    if machine.devices == 1:
        return "auto"
    if machine.sharded:
        settings = {
            "replicas": machine.replicas if machine.replicas > 1 else None,
            "activation_checkpointing": machine.activation_checkpointing,
            "reduce_every_micro_batch": micro_batches > 1 and not machine.whole_gradients,
        }
        chosen = {name: value for name, value in settings.items() if value}
        return {"class_path": SHARDED_CLASS, "init_args": chosen} if chosen else SHARDED_STRATEGY
    phases = run.recurrence.phases(run.steps)
    idle = any(run.backbone.leaves_idle(passes) for phase in phases for passes in phase.choices)
    return "ddp_find_unused_parameters_true" if idle else "ddp"


def _callbacks(run: Run) -> list[dict[str, Any]]:
    callbacks: list[dict[str, Any]] = []
    growths, drawn = run.recurrence.growths, run.recurrence.random
    if growths:
        fractions = [growth.fraction for growth in growths]
        args: dict[str, Any] = {"passes": _one_or_list([growth.passes for growth in growths])}
        if None in fractions:
            args["step"] = _one_or_list([growth.step for growth in growths])
        else:
            args["fraction"] = _one_or_list(fractions)
        before = [run.recurrence.passes, *(growth.passes for growth in growths)]
        if not run.backbone.tied and any(growth.passes % k for growth, k in zip(growths, before, strict=False)):
            args["any_target"] = True
        callbacks.append({"class_path": "ModelGrowth", "init_args": args})
    if drawn:
        args = {"passes": list(drawn.choices), "evaluate_at": drawn.evaluate_at, "seed": drawn.seed}
        callbacks.append({"class_path": "RandomRecurrence", "init_args": args})
    return callbacks


def _one_or_list(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def _header(run: Run) -> list[str]:
    """What the run is: depth arithmetic, parameters, length, growth, learning rate, compute."""
    plan, backbone = run.to_dict(), run.backbone
    depths = " → ".join(_depth_sum(run, phase.choices) for phase in run.phases)
    times = "" if backbone.stored_cores == 1 else f"{backbone.stored_cores}·"
    lines = [
        f"{run.title}: width {backbone.width}, {backbone.heads} heads, "
        f"prelude/core/coda {backbone.prelude}/{backbone.core}/{backbone.coda}.",
        f"Executed depth {depths}; stored {backbone.prelude} + {times}{backbone.core} + {backbone.coda} = "
        f"{backbone.stored_blocks} blocks, {plan['stored_parameters']:,} parameters.",
        f"{counted(run.steps, 'step')} of {run.batch_tokens:,} tokens = {run.tokens / 1e9:.4g}B tokens, "
        f"{run.tokens_per_parameter:.3g} per parameter of the initial {plan['initial_parameters']:,}.",
    ]
    if run.epochs is not None:
        epochs, steps = counted(run.epochs, "epoch"), counted(run.steps_per_epoch, "step")
        lines.append(f"{epochs} of {steps} over {run.pool_tokens:,} unique tokens.")
    for index, growth in enumerate(run.recurrence.growths):
        fraction = plan["growth_fraction"]
        rho = fraction[index] if isinstance(fraction, list) else fraction
        lines.append(f"Grows to {growth.passes} passes at step {growth.step:,} (ρ = {rho:.4g} of the run after it).")
    if run.recurrence.random:
        lines.append(
            f"K is then drawn from {list(run.recurrence.random.choices)} at every step, evaluated at "
            f"{run.recurrence.random.evaluate_at}."
        )
    return [*lines, *run.study.header(run)]


def _depth_sum(run: Run, choices: tuple[int, ...]) -> str:
    backbone = run.backbone
    passes = str(choices[0]) if len(choices) == 1 else f"{{{','.join(map(str, choices))}}}"
    total = ",".join(str(backbone.executed_depth(k)) for k in choices)
    return f"{backbone.prelude} + {passes}·{backbone.core} + {backbone.coda} = {total}"


class _Dumper(yaml.SafeDumper):
    """Lists of plain values on one line, everything else as blocks."""


def _represent_list(dumper: _Dumper, values: list[Any]) -> yaml.Node:
    flat = not any(isinstance(value, dict | list) for value in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=flat)


_Dumper.add_representer(list, _represent_list)
