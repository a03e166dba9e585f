"""The record of a run: each field once, with its kind, unit, range and meaning. No torch here.

Whatever writes a record (`Run.to_dict`, the report, `recipe`, `plan`) or reads one (`laws`, `loops fit`, plots) goes by
`FIELDS`; `python -m looplit.results` prints them as the table of `docs/results.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

Kind = Literal["size", "setting", "seed", "measurement", "circumstance"]

KINDS: dict[Kind, str] = {
    "size": "tells the rungs of a ladder apart, or follows from what does",
    "setting": "changes the function computed or its training; replicates differ in none, a series only in those that "
    "follow what varies in it",
    "seed": "tells replicates apart",
    "measurement": "was measured on the model",
    "circumstance": "where and how fast it ran, and where it was kept; may differ between two results of one run",
}


class Range(NamedTuple):
    """What the numbers of a field are, in words and as a test."""

    words: str
    holds: Callable[[float], bool]


ANY = Range("finite", math.isfinite)
ABOVE_0 = Range("above 0", lambda value: value > 0)
AT_LEAST_0 = Range("at least 0", lambda value: value >= 0)
WHOLE = Range("a whole number of at least 1", lambda value: value >= 1 and value == int(value))
AT_MOST_1 = Range("at most 1", lambda value: value <= 1)


class Field(NamedTuple):
    """One field of a record.

    Args:
        name: Its key; one that ends in ":" is the prefix of a key per task.
        kind: One of `KINDS`.
        meaning: In words.
        unit: In words, as answers and axes say it.
        range: Of its numbers.
        follows: What it may vary with inside one series: names of fields, "size" for any size, "extent" for any extent.
        extent: Whether it is a length of the run, in which replicates differ by whole steps.
        shared: Whether runs that differ in it cannot be compared at all, be they of one series or of two.
        optional: Whether it is absent where it does not apply.
        rising: Whether a score is better when higher.
        aliases: Other names of the same.
    """

    name: str
    kind: Kind
    meaning: str
    unit: str = ""
    range: Range = ANY
    follows: tuple[str, ...] = ()
    extent: bool = False
    shared: bool = False
    optional: bool = False
    rising: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def causes(self) -> set[str]:
        """What others may say that they follow, where this field varies."""
        return {self.name} | ({"size"} if self.kind == "size" else set()) | ({"extent"} if self.extent else set())


def _size(name: str, meaning: str, unit: str = "", range: Range = ANY) -> Field:
    return Field(name, "size", meaning, unit or meaning, range, ("size", "extent", "passes", "tied"))


def _setting(name: str, meaning: str, unit: str = "", *, follows: str = "", optional: bool = False) -> Field:
    return Field(name, "setting", meaning, unit, follows=tuple(follows.split()), optional=optional)


def _extent(name: str, meaning: str, unit: str, range: Range = ANY, optional: bool = False, alias: str = "") -> Field:
    follows = ("size", "extent", "passes", "growth_fraction", "growth_step", "batch_tokens")
    return Field(name, "setting", meaning, unit, range, follows, True, optional=optional,
                 aliases=(alias,) if alias else ())  # fmt: skip


def _data(name: str, meaning: str, unit: str = "", *, optional: bool = False) -> Field:
    return Field(name, "setting", meaning, unit, shared=True, optional=optional)


def _measured(name: str, meaning: str, unit: str = "", range: Range = ANY, *, rising: bool = False,
              alias: str = "") -> Field:  # fmt: skip
    return Field(name, "measurement", meaning, unit or meaning, range, rising=rising, aliases=(alias,) if alias else ())


def _circumstance(name: str, meaning: str, unit: str = "", range: Range = ANY) -> Field:
    return Field(name, "circumstance", meaning, unit or meaning, range)


_RATE = "size extent passes batch_tokens learning_rate"
_ANSWERS = "nats per token of the gold answers"

FIELDS: tuple[Field, ...] = (
    Field("family", "setting", "architecture family or variant", aliases=("arm",)),
    _size("depth", "nominal depth", range=WHOLE),
    _size("width", "width of the residual stream"),
    _size("heads", "attention heads per block"),
    _size("split", "blocks of prelude, core and coda"),
    _size("stored_parameters", "stored parameters", "stored parameters N"),
    _size("initial_parameters", "parameters that are active at the start"),
    _size("nonembedding_parameters", "non-embedding parameters"),
    _size("recurrent_parameters", "parameters of one core"),
    _size("executed_depth", "blocks that a token passes through, by phase"),
    _size("flops_per_token", "training FLOPs per token, by phase"),
    _size("phase_flops", "training FLOPs, by phase"),
    Field("passes", "setting", "times that the core is applied, by phase", "passes K", WHOLE),
    _setting("trained_passes", "last passes that the gradient goes through", "trained passes B", follows="passes",
             optional=True),
    _setting("tied", "whether all passes share one core"),
    _setting("stored_cores", "cores kept in memory", "cores", follows="passes"),
    _setting("boundary", "φ, applied to the state before each pass"),
    _setting("coda_boundary", "ρ, applied to the state before the coda"),
    _setting("injection_scale", "α of the boundary operator", "factor on the prelude's output", optional=True),
    _setting("initial_state", "h_0, the state before the first pass"),
    _setting("residual_multiplier", "RM", "factor on every block's branches"),
    _setting("output_multiplier", "OM", "factor on the logits", follows="size"),
    _data("vocabulary", "token ids", "token ids"),
    _data("context", "longest sequence trained on", "tokens"),
    _setting("embedding_std", "WTE, of the token embedding at the start", "standard deviation"),
    _setting("uniform_init_scale", "UIS, of q, k, v, gate and up at the start", "multiple of width^-0.5"),
    _setting("branch_init_scale", "the same of out and down", "multiple of inputs^-0.5"),
    _setting("head_std", "of the head at the start", "standard deviation"),
    _setting("mlp", "kind of MLP"),
    _setting("gains", "whether norms have learned gains"),
    _setting("pass_norm", "whether the state is normalised after every pass"),
    _setting("soft_cap", "of the logits", "logits", optional=True),
    _setting("growth_step", "optimizer steps before growth", "optimizer steps",
             follows="size extent growth_fraction batch_tokens", optional=True),
    Field("growth_fraction", "setting", "ρ, share of the run after growth",
          "fraction of training tokens after growth", follows=("size", "extent", "growth_step"), optional=True),
    _setting("growth_rewarm_steps", "steps of the re-warm after growth", "optimizer steps", optional=True),
    _setting("drawn_passes", "passes drawn from at every step after growth", optional=True),
    _setting("evaluate_at", "passes of every evaluation, where they are drawn", "passes K", optional=True),
    _setting("optimizer", "of the block matrices"),
    _setting("hyperparameters", "those of the recipe, by name", optional=True),
    _setting("learning_rate", "peak, of the block matrices", "matrix learning rate per step",
             follows="size extent passes batch_tokens"),
    _setting("embedding_lr", "peak, of the embedding", "embedding learning rate per step",
             follows=_RATE + " embedding_lr_multiplier"),
    _setting("head_lr", "peak, of the head", "head learning rate per step", follows=_RATE + " head_lr_multiplier"),
    _setting("gain_lr", "peak, of the norms' gains", "learning rate of the gains per step", follows=_RATE,
             optional=True),
    _setting("embedding_lr_multiplier", "ELRM", "multiple of the matrix learning rate", optional=True),
    _setting("head_lr_multiplier", "HLRM", "multiple of the matrix learning rate", optional=True),
    Field("weight_decay", "setting", "decoupled", "weight decay per step and learning rate", AT_LEAST_0,
          ("size",), optional=True),
    _setting("betas", "of AdamW", "betas of AdamW"),
    _setting("eps", "of AdamW", "ε of AdamW"),
    _setting("warmup_steps", "of the learning rate", "optimizer steps", optional=True),
    _setting("warmdown_ratio", "share of the run over which the learning rate falls",
             "fraction of the optimizer steps", optional=True),
    _setting("final_factor", "where the learning rate ends", "fraction of its peak", optional=True),
    _setting("gradient_clip_val", "largest norm or value of a gradient", "gradient", optional=True),
    _setting("gradient_clip_algorithm", "how gradients are clipped", optional=True),
    _setting("precision", "of the arithmetic, as Lightning names it"),
    _setting("batch_tokens", "training tokens per optimizer step", "tokens per optimizer step", follows="size extent"),
    _extent("steps", "optimizer steps taken", "optimizer steps"),
    _extent("planned_steps", "optimizer steps of the schedule", "optimizer steps"),
    _extent("tokens", "training tokens, repeats counted", "training tokens"),
    _extent("tokens_per_parameter", "TPP", "training tokens per initial stored parameter", optional=True),
    _extent("epochs", "passes over the training text", "passes over the training text", optional=True),
    _extent("training_flops", "at the passes that were run, attention halved by causality", "training FLOPs", ABOVE_0,
            alias="compute_flops"),
    _extent("training_flops_full_attention", "the same with full attention", "training FLOPs", optional=True),
    _extent("expected_training_flops", "at the mean of drawn passes", "training FLOPs", optional=True),
    _data("corpus", "where the text is from; the class of a loader that does not say"),
    _data("corpus_revision", "revision of the corpus", optional=True),
    _data("corpus_hash", "of all that decides the training text, its length aside", optional=True),
    _data("tokenizer", "name of the tokenizer"),
    _data("validation_hash", "of the blocks of the validation split", optional=True),
    _data("validation_tokens", "tokens validated on at most", "tokens", optional=True),
    _data("validation_limit", "share or batches of them that the Trainer takes", optional=True),
    _data("training_limit", "share or batches of an epoch that the Trainer takes", optional=True),
    _data("pool_tokens", "unique tokens to train on; absent for all of the corpus", "unique training tokens",
          optional=True),
    _data("recut", "whether windows begin at another offset in every epoch", optional=True),
    Field("seed", "seed", "of the whole run"),
    Field("data_seed", "seed", "of the order of the blocks"),
    Field("initial_weights_seed", "seed", "of the weights at the start"),
    Field("draw_seed", "seed", "of the drawn passes"),
    _measured("final_val_loss", "validation loss of the final weights", "nats per token", ABOVE_0, alias="val_loss"),
    _measured("best_val_loss", "lowest validation loss", "nats per token", ABOVE_0),
    _measured("final_val_bpb", "validation loss per byte of the final weights", "bits per byte", ABOVE_0),
    _measured("validations", "every validation as (step, passes, nats per token)"),
    _measured("effective_depth", "KL effective depth", "executed blocks"),
    _measured("core", "an evaluation, as the evaluate command writes it"),
    _measured("core_metric", "CORE", "CORE, mean centered accuracy", AT_MOST_1, rising=True),
    _measured("core_metric_filtered", "CORE of the filtered tasks", "filtered CORE, mean centered accuracy", AT_MOST_1,
              rising=True),
    _measured("core_metric_std", "spread of CORE over seeds", "standard deviation of CORE"),
    _measured("core_loss", "mean loss of the answers", _ANSWERS, ABOVE_0),
    _measured("core_bpb", "the same per byte", "bits per byte of the gold answers"),
    _measured("loss:", "loss of the answers of a task", _ANSWERS, ABOVE_0),
    _measured("centered:", "accuracy in a task, 0 for chance", "centered accuracy", AT_MOST_1, rising=True),
    _circumstance("tokens_per_second", "training speed", "tokens per second"),
    _circumstance("train_seconds", "optimization alone", "seconds of optimization", ABOVE_0),
    _circumstance("expected_train_seconds", "the same, planned", "seconds of optimization"),
    _circumstance("wall_s", "the whole run", "seconds"),
    _circumstance("peak_gib", "most memory", "GiB"),
    _circumstance("memory_bytes", "estimated, per device", "bytes"),
    _circumstance("phase_memory_bytes", "the same, by phase", "bytes"),
    _circumstance("device", "kind of device"),
    _circumstance("device_count", "devices in all"),
    _circumstance("micro_batch", "sequences per device and forward"),
    _circumstance("accumulation", "micro-batches per optimizer step"),
    _circumstance("versions", "of packages"),
    _circumstance("config_path", "the run's configuration"),
    _circumstance("checkpoint_path", "the run's last checkpoint"),
)  # fmt: skip

EXTENTS = tuple(field.name for field in FIELDS if field.extent)
"""Lengths of a run, in which replicates differ by whole steps."""

_BY_NAME = {field.name: field for field in FIELDS}
_OURS = {alias: field.name for field in FIELDS for alias in field.aliases}


def resolved(column: str) -> str:
    """Our name of a column that may bear the published table's."""
    return _OURS.get(column, column)


def field_of(key: str) -> Field:
    """The field of a key; one that no record of ours has counts as a setting.

    >>> field_of("centered:copa").name, field_of("initial_passes").name, field_of("warmth").kind
    ('centered:', 'passes', 'setting')
    """
    kind, task, _ = key.partition(":")
    plain = key.removeprefix("initial_").removeprefix("every_")
    for name in (key, kind + task, plain):
        if name in _BY_NAME:
            return _BY_NAME[name]
    return Field(key, "setting", "not a field of ours")


def is_known(key: str) -> bool:
    """Whether a key is one of `FIELDS`."""
    return field_of(key).name in _BY_NAME


def unit_of(key: str) -> str:
    """Unit of a column, in words; of one that is not ours, its name and that it is as given.

    >>> unit_of("final_val_bpb"), unit_of("warmth")
    ('bits per byte', 'warmth, in its own unit')
    """
    return field_of(key).unit or f"{key}, in its own unit"


def is_rising(key: str) -> bool:
    """Whether a score is better when higher."""
    return field_of(key).rising


def may_vary(key: str, varied: Iterable[str]) -> bool:
    """Whether a field may differ inside a series in which the fields `varied` do by intention.

    >>> may_vary("learning_rate", ["depth"]), may_vary("boundary", ["depth"]), may_vary("boundary", ["boundary"])
    (True, False, True)
    """
    field = field_of(key)
    causes = set().union(*(field_of(name).causes for name in varied))
    return field.name in causes or not causes.isdisjoint(field.follows)


def table() -> str:
    """`FIELDS` as a table of Markdown."""
    lines = ["| field | kind | unit | range | may vary with | meaning |", "|---|---|---|---|---|---|"]
    for field in FIELDS:
        numbers = "" if field.range is ANY else field.range.words
        follows = "nothing compared" if field.shared else ", ".join(field.follows)
        meaning = field.meaning + (f" (also `{'`, `'.join(field.aliases)}`)" if field.aliases else "")
        lines.append(f"| `{field.name}` | {field.kind} | {field.unit} | {numbers} | {follows} | {meaning} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
