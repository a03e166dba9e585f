"""The measuring callbacks on a module of one's own: the example of the docs, and what is refused when."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.small import quiet_trainer, tokens, windows
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.nn.functional import cross_entropy

from looplit.callbacks import CoreEvaluation, EffectiveDepth, TestTimePasses
from looplit.errors import InputError


@pytest.fixture(scope="module")
def example(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names that the example of docs/dashboards.md leaves behind, run as printed."""
    (code,) = re.findall(r"```python\n(.*?)```", (root / "docs" / "dashboards.md").read_text(), re.DOTALL)
    loader = windows(80)
    names: dict[str, Any] = {"train_loader": loader, "val_loader": loader}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("example"))
        torch.manual_seed(1)
        exec(code, names)
    return names


def fit(module: L.LightningModule, *callbacks: Callback) -> None:
    loader = windows(80)
    settings: dict[str, Any] = {"devices": 1, "max_steps": 2, "val_check_interval": 2, "num_sanity_val_steps": 0}
    quiet_trainer(callbacks=list(callbacks), **settings).fit(module, loader, loader)


def test_the_example_of_the_docs_measures_depth_and_passes(example: dict[str, Any]) -> None:
    depth, passes = example["callbacks"][:2]  # the Trainer adds its own
    assert depth.result.labels == ["core 1.1", "core 2.1"]
    assert depth.result.kl[-1] == 0 < depth.result.kl[0]
    assert list(passes.result.losses) == [1, 2, 4]


def test_its_losses_are_those_of_a_loop_by_hand(example: dict[str, Any]) -> None:
    module, passes = example["MyModule"](), TestTimePasses([1, 3])
    fit(module, passes)
    assert passes.result is not None
    for k, loss in passes.result.losses.items():
        module.backbone.set_passes(k)
        with torch.no_grad():
            by_hand = cross_entropy(module(tokens(80)[:, :-1]).mT, tokens(80)[:, 1:])
        assert loss == pytest.approx(float(by_hand), rel=1e-6)  # fp32 losses, added in another order


def test_a_module_can_show_its_stream_itself(example: dict[str, Any]) -> None:
    class Shown(example["MyModule"]):  # type: ignore[misc]
        def run(self, tokens_BT: Tensor, observe: Callable[..., None]) -> None:
            example["stream"](self).run(tokens_BT, observe)

        def decode(self, state: Tensor) -> Tensor:
            return self.backbone.head(state)  # type: ignore[no-any-return]

    depth = EffectiveDepth()
    fit(Shown(), depth)
    assert depth.result is not None
    assert depth.result.executed_depth == 2


class Untouched(Callback):
    """Notes that training began."""

    began = False

    def on_train_batch_start(self, *_: Any) -> None:
        self.began = True


@pytest.mark.parametrize(
    ("callback", "said"),
    [
        (lambda folder: EffectiveDepth(), r"stream = None: MyModule has no Backbone; say EffectiveDepth\(stream=…\)"),
        (lambda folder: EffectiveDepth(stream=lambda module: module.backbone), "MyBackbone: has no Backbone"),
        (lambda folder: CoreEvaluation(folder, tokenizer="bytes"), "tokenizer = 'bytes': has 257 token ids.* is 64"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_training(
    example: dict[str, Any], bundle: str, callback: Callable[[str], Callback], said: str
) -> None:
    seen = Untouched()
    with pytest.raises(InputError, match=said):
        fit(example["MyModule"](), callback(bundle), seen)
    assert not seen.began


def test_passes_above_the_cores_are_refused_before_training(example: dict[str, Any], bundle: str) -> None:
    for callback in (CoreEvaluation(bundle, tokenizer="bytes", passes=2), TestTimePasses([1, 2])):
        module, seen = example["MyModule"](), Untouched()
        module.backbone.tied = False  # with its one core
        with pytest.raises(InputError, match="passes = 2: an untied model can run at most its 1 stored cores"):
            fit(module, callback, seen)
        assert not seen.began


@pytest.fixture(scope="module")
def bundle(root: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A suite of one task."""
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "eval_data").mkdir()
    (folder / "core.yaml").write_text(
        "icl_tasks: [{label: a, dataset_uri: a.jsonl, num_fewshot: [0], icl_task_type: language_modeling}]"
    )
    (folder / "eval_meta_data.csv").write_text("Eval Task,Random baseline\na,0\n")
    (folder / "eval_data" / "a.jsonl").write_text('{"context": "x", "continuation": "y"}\n')
    return str(folder)


@pytest.mark.parametrize(
    ("made", "arguments", "said"),
    [
        (EffectiveDepth, {"threshold": -1}, "threshold = -1: must be a number of nats, at least 0"),
        (EffectiveDepth, {"threshold": float("nan")}, "threshold = nan"),
        (EffectiveDepth, {"direction": "bad"}, "direction = 'bad': must be one of final_decoded, decoded_final"),
        (EffectiveDepth, {"tokens": "4"}, "tokens = '4': must be a whole number, at least 1"),
        (EffectiveDepth, {"tokens": 2.5}, "tokens = 2.5"),
        (TestTimePasses, {"passes": []}, r"passes = \[\]: must list at least one whole number"),
        (TestTimePasses, {"passes": "12"}, "passes = '12'"),
        (TestTimePasses, {"passes": 4}, "passes = 4"),
        (TestTimePasses, {"passes": [1.5]}, "passes = 1.5: must be a whole number, at least 1"),
        (CoreEvaluation, {"limit": 1.5}, "limit = 1.5: must be a whole number, at least 1"),
        (CoreEvaluation, {"token_budget": 0}, "token_budget = 0"),
        (CoreEvaluation, {"seeds": 3}, "seeds = 3: must list different whole numbers, at least one"),
        (CoreEvaluation, {"seeds": [1, 1]}, r"seeds = \[1, 1\]"),
    ],
)
def test_arguments_out_of_range_are_refused_at_once(made: Any, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        made(**arguments)
