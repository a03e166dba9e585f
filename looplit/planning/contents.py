# ruff: noqa: E501  (tables of Markdown)
"""The `configs/` folder: every published run's config file and the table of contents, from the recipe command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from looplit.planning.published import Published, published_runs

README = "README.md"
INTRODUCTION = """\
# Configs

One file is one run, complete: `python -m looplit fit --config configs/ladders/untied_grow_d08.yaml`. Every file but
`demo.yaml` is made by the recipe command, which stands in its header; `python -m looplit recipe --write_configs configs`
writes them all and this table of contents. `python -m looplit plan --config FILE` says what a run will do and need.

| Place | Runs |
|---|---|
| `demo.yaml` | a small Untied-Grow run on text that needs no download, for a laptop |
| `untied_grow_d26.yaml` | the growth study's largest run, on two nodes |
| [ladders](#compute-optimal-ladders) | its compute-optimal ladders |
| [data_constrained](#data-constrained-grid) | its grid of depths and passes on repeated data |
| [ablations](#boundary-operator-ablations-table-4) | its boundary-operator ablations |
| [random_recurrence](#random-recurrence) | its ladder with passes drawn at random |
| [truncation](#truncation-study) | the truncation study (`docs/truncation.md`) |
| launch | a SLURM script |

The published runs use FineWeb (`--data FineWebEdu` for the other corpus; its prepared folder with `--data.folder`) on
eight devices of 80 GB. On other machines keep the batch of 524,288 tokens (262,144 in the truncation study): set
`--trainer.devices`, `--data.batch_size` and `--trainer.accumulate_grad_batches` so that their product with the context
of 2,048 is that, or let the recipe do it: `python -m looplit recipe untied_grow 8 --devices 1 --micro_batch 4 --yaml`.

## More runs by option

| Run | Options of `python -m looplit recipe` |
|---|---|
| The study's simpler advice for new ladders: reference TPP 6, one growth fraction | `untied_grow 12 --mode simple` |
| The reference TPP and growth fraction apart | `untied_grow 12 --tpp 6`; `untied_grow 12 --fraction 0.3` |
| Warmdown over the whole run, or any hyperparameter | `vanilla 12 --set warmdown_ratio=1` |
| Data-constrained, weight decay selected at K = 1, or from the grid | `loop_3 8 --data_constrained --weight_decay selected`; `--weight_decay 0.4` |
| 250M unique tokens four times; 1B fresh tokens | `loop_3 8 --data_constrained --pool_tokens 250M --epochs 4`; `loop_3 8 --data_constrained --tokens 1B` |
| Controls Tied and Untied Vanilla | `tied_vanilla_4 8 --data_constrained`; `untied_vanilla_4 8 --data_constrained` |
| Constant recipe; an exponent of its own | `vanilla 12 --constant`; `--exponent weight_decay=0.2` |
| Output multiplier as 1/width, with and without the learning-rate rule | `vanilla 12 --mup_output`; `--mup_output --constant` |
| Another family's hyperparameters | `operator_1 12 --hyperparameters_of vanilla` |
| Width-only at executed depth 11; 1:64; fixed allocations | `untied_2 12 --shape width_only`; `--shape deep_narrow`; `--shape 2/C/3` |
| AdamW on the matrices (the learning rate is ours, the study prints none) | `untied_2 8 --optimizer adamw --tpp 8` |
| Other growth targets; staged growth | `untied_2 8 --growth 6:0.3`; `untied_2 8 --growth 4:0.4 --growth 6:0.1` |
| A budget in place of the depth | `untied_grow --flops 1e20`; `--tokens 10B`; `--parameters 1B` |
| A loop setting (T, B), another budget or boundary, the study's vocabulary | `truncated_loop --passes 8 --trained_passes 2 --tokens 4B`; `--boundary inject`; `--vocabulary 32768` |
| No injection before the coda; norm or injection only | `untied_2 8 --coda_boundary norm`; `--boundary norm --coda_boundary norm` |

With `--json` the command prints the run as JSON, with `--yaml` its config file, else a card.

The hyperparameters of Table 4's separately tuned ablations were not printed: those files take the nearest family's.
"""


def config_files(config_of: Callable[[list[str]], str]) -> dict[str, str]:
    """Text of every generated file of `configs/`, by path within it.

    Args:
        config_of: Gives the config file of recipe options.
    """
    runs = published_runs()
    files = {run.name: config_of(run.options) for run in runs}
    return {**files, README: table_of_contents(runs)}


def write_configs(folder: Path, config_of: Callable[[list[str]], str]) -> list[Path]:
    """Writes every generated file into `folder` and returns their paths."""
    paths = []
    for name, text in config_files(config_of).items():
        paths.append(folder / name)
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        paths[-1].write_text(text, encoding="utf-8")
    return paths


def table_of_contents(runs: list[Published]) -> str:
    """The README of `configs/`: a table per group of runs."""
    groups: dict[str, list[Published]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    parts = [INTRODUCTION]
    for group, members in groups.items():
        rows = [f"| [{Path(run.name).stem}]({run.name}) | `{' '.join(run.options)}` | {run.claim} |" for run in members]
        parts.append("\n".join([f"\n## {group}\n", "| File | Recipe | Claim |", "|---|---|---|", *rows, ""]))
    return "".join(parts)
