"""Recipes and plans as text for people."""

from __future__ import annotations

from typing import Any

from looplit.planning.plan import Plan
from looplit.planning.resources import MEMORY
from looplit.recipes.run import Run
from looplit.recipes.training import Schedule
from looplit.recipes.truncation_study import loop_line
from looplit.wording import columns, counted

_NO_ROOM = "does not fit the memory of {}: take a smaller batch_size, more devices or activation_checkpointing"


def run_card(run: Run) -> str:
    """A run on one screen."""
    return f"{columns(_run_rows(run), '<')}\n"


def _run_rows(run: Run) -> list[tuple[str, str]]:
    plan, backbone = run.to_dict(), run.backbone
    rows: list[tuple[str, str]] = [
        ("model", run.title),
        ("shape", f"width {backbone.width}, {backbone.heads} heads, MLP {backbone.hidden}, context {backbone.context}, "
                  f"vocabulary {backbone.vocabulary:,}"),
        ("prelude/core/coda", f"{backbone.prelude}/{backbone.core}/{backbone.coda}, {_cores(run)}, "
                              f"boundary {_boundaries(run)}"),
        ("passes", _arrow(plan["passes"])),
        ("executed depth", _arrow(plan["executed_depth"])),
        ("parameters", f"{plan['stored_parameters']:,} stored, {plan['initial_parameters']:,} initial, "
                       f"{plan['nonembedding_parameters']:,} without embedding and head"),
        ("steps", f"{run.steps:,} of {counted(run.batch_tokens, 'token')}"),
        ("tokens", f"{run.tokens:,} ({run.tokens_per_parameter:.2f} per initial parameter){_epochs(run)}"),
    ]  # fmt: skip
    if run.recurrence.growths:
        steps, fractions = plan["growth_step"], plan["growth_fraction"]
        rows.append(("growth", f"at step {_arrow(steps)}, fraction after it {_arrow(fractions)}"))
    if backbone.trained_passes is not None:
        rows.append(("loops", loop_line(backbone)))
    adamw = run.groups["embedding"]
    rows += [
        ("learning rates", _learning_rates(run)),
        ("schedule", _schedule(run.hyperparameters.schedule)),
        ("weight decay", f"{adamw.weight_decay:g}"),
        ("AdamW", f"betas {adamw.betas[0]:g} and {adamw.betas[1]:g}, eps {adamw.eps:g}"),
        ("multipliers", f"residual {backbone.residual_multiplier:g}, output {backbone.output_multiplier:g}"
                        f"{_injection(run)}"),
        ("initialisation", f"embedding std {backbone.embedding_std:g}, uniform scale {backbone.uniform_init_scale:g}"),
        ("FLOPs per token", _arrow(plan["flops_per_token"])),
        ("training FLOPs", f"{run.training_flops:.7e}"),
    ]  # fmt: skip
    return [*rows, *run.study.rows(run)]


def plan_card(plan: Plan, device: str | float, mfu: float) -> str:
    """A plan on one screen: the run, then its phases, memory and time."""
    answer = plan.to_dict(device, mfu)
    memory, seconds = answer["memory_bytes"], answer["expected_train_seconds"]
    parts = ", ".join(f"{name.replace('_', ' ')} {_gib(size)}" for name, size in memory.items() if name != "total")
    capacity = MEMORY.get(str(device))
    of = "" if capacity is None else f" of {_gib(capacity)}"
    fits = capacity is None or memory["total"] < capacity
    rows = [
        ("FLOPs per phase", " → ".join(f"{flops:.7e}" for flops in answer["phase_flops"])),
        ("micro-batch", f"{_windows(plan.machine.micro_batch)} × {plan.accumulation} accumulated{_sharding(plan)}"),
        ("memory per device", f"about {' → '.join(map(_gib, answer['phase_memory_bytes']))} GiB{of} ({parts})"),
        ("time", f"about {_duration(seconds)} on {plan.machine.devices} × {device} at MFU {mfu:g}{_again(plan)}"),
        *(("note", note) for note in [*plan.notes, *([] if fits else [_NO_ROOM.format(device)])]),
    ]  # fmt: skip
    return f"{columns([*_run_rows(plan.run), *rows], '<')}\n"


def _windows(number: int) -> str:
    return "1 window" if number == 1 else f"{number} windows"


def _sharding(plan: Plan) -> str:
    machine = plan.machine
    if not machine.sharded:
        return ""
    copies = "" if machine.replicas == 1 else f", {machine.replicas} copies"
    return f"; sharded over {machine.shards} devices{copies}"


def _again(plan: Plan) -> str:
    unit = plan.machine.activation_checkpointing
    return "" if unit is None else f", every {unit} run again in the backward pass"


def _cores(run: Run) -> str:
    if run.backbone.tied:
        return "one core" if run.recurrence.max_passes == 1 else "one tied core"
    return f"{run.backbone.stored_cores} untied cores"


def _boundaries(run: Run) -> str:
    before, coda = run.backbone.boundary, run.backbone.coda_boundary
    return f"{before}" if before == coda else f"{before}, before the coda {coda}"


def _injection(run: Run) -> str:
    config = run.backbone
    return f", injection {config.injection_scale:g} (initial state {config.initial_state})" if config.injects else ""


def _learning_rates(run: Run) -> str:
    rates = {role: group.learning_rate for role, group in run.groups.items() if role != "boundary"}
    first = {"matrix": rates.pop("matrix"), **rates}
    return ", ".join(f"{role} {rate:.6g}" for role, rate in first.items()) + f" ({run.optimizer} on the matrices)"


def _schedule(schedule: Schedule) -> str:
    end = f" to {schedule.final_factor:g}" if schedule.final_factor else ""
    warmup = counted(schedule.warmup_steps, "warmup step")
    share = "whole" if schedule.warmdown_ratio == 1 else f"last {schedule.warmdown_ratio:g} of the"
    return f"{warmup}, decay{end} over the {share} run"


def _epochs(run: Run) -> str:
    return "" if run.epochs is None else f", {counted(run.epochs, 'epoch')} of {run.pool_tokens:,} unique tokens"


def _arrow(values: Any) -> str:
    if not isinstance(values, list):
        return _plain(values)
    return " → ".join(_plain(value) for value in values)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return "{" + ", ".join(map(_plain, value)) + "}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f}"


def _duration(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s"
