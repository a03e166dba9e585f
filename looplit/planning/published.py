"""The runs of both studies as recipe commands: the list from which `configs/` is made."""

from __future__ import annotations

from dataclasses import dataclass

from looplit.recipes.truncation_study import SETTINGS, TRUNCATED_LOOP, WIDTHS, setting_stem

LADDERS = {
    "vanilla": range(6, 21, 2),
    "deep_vanilla": range(6, 19, 2),
    "deep_vanilla_grow": range(6, 19, 2),
    "operator_1": range(6, 21, 2),
    "loop_2": range(6, 19, 2),
    "loop_grow": range(6, 19, 2),
    "untied_2": range(6, 19, 2),
    "untied_grow": range(6, 19, 2),
}
CLAIMS = {
    "vanilla": "The baseline of every scaling comparison.",
    "deep_vanilla": "Control: more blocks without the boundary operator.",
    "deep_vanilla_grow": "Growth improves the exponent without the boundary operator too.",
    "operator_1": "The boundary operator alone, at Vanilla's parameters and FLOPs, improves the exponent.",
    "loop_2": "Weight sharing: two passes of one core.",
    "loop_grow": "Growth from two to four passes of one core improves the exponent.",
    "untied_2": "Untying the passes improves the constant, not the exponent.",
    "untied_grow": "Growth of untied cores with the boundary operator: the best exponent of the study.",
}
DATA_CONSTRAINED_PASSES = {
    6: (1, 2, 3, 4, 6),
    8: (1, 2, 3, 4, 6, 8, 12),
    10: (1, 2, 3, 4, 6, 8, 12),
    12: (1, 2, 3, 4, 6, 8, 12),
    14: (1, 2, 3, 4, 6, 8),
    16: (1, 2, 3),
    18: (1,),
}
# Table 4: compute-matched arms at d8 on 1B tokens. Their tuned hyperparameters are not printed.
TABLE_4 = {
    "deep_vanilla": ("deep_vanilla 8", "Deep Vanilla"),
    "loop_2": ("loop_2 8", "Loop-2"),
    "loop_2_no_coda_injection": ("loop_2 8 --coda_boundary norm", "Loop-2 without injection before the coda"),
    "untied_2": ("untied_2 8", "Untied-2"),
    "untied_2_no_coda_injection": ("untied_2 8 --coda_boundary norm", "Untied-2 without injection before the coda"),
    "deep_vanilla_norm": ("deep_vanilla 8 --boundary norm --coda_boundary norm", "Deep Vanilla with norms only"),
    "deep_vanilla_injection": (
        "deep_vanilla 8 --boundary inject --coda_boundary inject", "Deep Vanilla with injection only"
    ),
}  # fmt: skip
# Heading in the table of contents → folder.
FOLDERS = {
    "Compute-optimal ladders": "ladders",
    "Data-constrained grid": "data_constrained",
    "Boundary-operator ablations (Table 4)": "ablations",
    "Random recurrence": "random_recurrence",
    "Truncation study": "truncation",
}
HELD_OUT = "untied_grow_d26"  # the one published run at the top of `configs/`


@dataclass(frozen=True)
class Published:
    """One config file.

    Args:
        group: Heading in the table of contents.
        name: Path within `configs/`.
        options: Of `python -m looplit recipe`, without output options.
        claim: The sentence the run serves.
    """

    group: str
    name: str
    options: list[str]
    claim: str


def published_runs() -> list[Published]:
    """Every run that `configs/` holds, in the order of its table of contents."""
    return [*_ladders(), *_data_constrained(), *_table_4(), *_random_recurrence(), *_truncation()]


def _ladders() -> list[Published]:
    group = "Compute-optimal ladders"
    runs = [
        _run(group, f"{family}_d{depth:02}", f"{family} {depth}", CLAIMS[family])
        for family, depths in LADDERS.items()
        for depth in depths
    ]
    claim = "Held out from every fit: the scaling law of the d6-d18 ladder predicts this 7.4B run."
    return [*runs, _run(group, HELD_OUT, "untied_grow 26 --nodes 2 --corpus fineweb_edu", claim)]


def _data_constrained() -> list[Published]:
    group, claim = "Data-constrained grid", "On repeated data the best number of passes grows with compute."
    runs = []
    for depth, cells in DATA_CONSTRAINED_PASSES.items():
        for passes in cells:
            family = "operator_1" if passes == 1 else f"loop_{passes}"
            stem = f"data_constrained_d{depth:02}_k{passes:02}"
            runs.append(_run(group, stem, f"{family} {depth} --data_constrained", claim))
    return runs


def _table_4() -> list[Published]:
    group = "Boundary-operator ablations (Table 4)"
    claim = "Both parts of the boundary operator, and its use before the coda, lower the loss"
    return [
        _run(group, f"table4_{name}", f"{options} --tokens 1B", f"{claim}; this arm: {arm}.")
        for name, (options, arm) in TABLE_4.items()
    ]


def _random_recurrence() -> list[Published]:
    group, options = "Random recurrence", "--random_passes 2,3,4,5,6 --evaluate_at 4"
    claim = "Passes drawn at random cost little and keep extra passes at test time harmless."
    return [
        _run(group, f"random_recurrence_d{depth:02}", f"loop_grow {depth} {options}", claim)
        for depth in LADDERS["loop_grow"]
    ]


def _truncation() -> list[Published]:
    """The 15 settings (T, B) at five sizes, all on the tokens of the study's measured pairs."""
    return [
        _run(
            "Truncation study",
            setting_stem(width, passes, trained),
            f"{TRUNCATED_LOOP.name} --passes {passes} --trained_passes {trained} --width {width}",
            _truncation_claim(passes, trained),
        )
        for width in WIDTHS
        for passes, trained in SETTINGS
    ]


def _truncation_claim(passes: int, trained: int) -> str:
    if passes == 1:
        return "No looping: the control, and the best setting where the model size is free."
    if passes == trained:
        return "Full backpropagation: the best setting of its cost where passes and trained passes are free."
    return "Truncated backpropagation: worth it only where the number of passes is given."


def _run(group: str, stem: str, options: str, claim: str) -> Published:
    name = f"{stem}.yaml" if stem == HELD_OUT else f"{FOLDERS[group]}/{stem}.yaml"
    return Published(group, name, options.split(), claim)
