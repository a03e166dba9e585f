"""The logit lens against a slow one, its invariants, effective depth and its edges, memory."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from looplit.errors import InputError
from looplit.eval.lens import (
    HookedStream,
    LensResult,
    ResidualStream,
    effective_depth,
    lens,
    site_label,
    stream_of,
    token_readings,
)
from looplit.model.backbone import Backbone, Observer, Site
from looplit.model.config import BackboneConfig
from looplit.model.growth import grow

TINY: dict[str, Any] = {"width": 32, "heads": 2, "prelude": 1, "core": 1, "coda": 1, "vocabulary": 61, "context": 16}
VANILLA = {"boundary": "identity", "coda_boundary": "identity"}
TRUNCATION_STUDY = {
    "mlp": "squared_relu", "gains": True, "pass_norm": True, "soft_cap": 3.0, "boundary": "linear",
    "coda_boundary": "identity",
}  # fmt: skip


def backbone(scale: float = 0.2, **settings: Any) -> Backbone:
    """A tiny model whose zero matrices are not zero, so that it predicts something at every block."""
    model = Backbone(BackboneConfig(**{**TINY, **settings}), seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def batch(rows: int = 3, tokens: int = 16, vocabulary: int = 61) -> tuple[Tensor, Tensor]:
    windows = torch.randint(0, vocabulary, (rows, tokens + 1), generator=torch.Generator().manual_seed(3))
    inputs, targets = windows[:, :-1], windows[:, 1:].clone()
    targets[0, :5] = -100
    return inputs, targets


def grown() -> Backbone:
    model = backbone(tied=False, passes=2, stored_cores=4)
    grow(model, 4)
    return model


MODELS = {
    "tied": lambda: backbone(passes=3),
    "untied": lambda: backbone(passes=3, tied=False),
    "grown": grown,
    "dormant cores": lambda: backbone(tied=False, passes=2, stored_cores=4),
    "vanilla": lambda: backbone(core=3, **VANILLA),
    "truncated": lambda: backbone(passes=3, trained_passes=1),
    "truncation study": lambda: backbone(passes=3, trained_passes=1, **TRUNCATION_STUDY),
    "no prelude": lambda: backbone(prelude=0, **VANILLA),
}


def slow_lens(model: Backbone, inputs: Tensor, targets: Tensor) -> dict[str, list[float]]:
    """All states kept, float64, one position at a time, straight from the formulas."""
    precise = copy.deepcopy(model).double()
    states: list[tuple[Site, Tensor]] = []
    precise(inputs, observe=lambda site, state: states.append((site, state.detach())))
    head = precise.head.weight[: precise.config.vocabulary].detach()

    def decode(x: Tensor) -> Tensor:
        normed = x / (x.square().mean() + 2.0**-23).sqrt()
        gain, cap = precise.head_norm.gain, precise.config.soft_cap
        logits = precise.config.output_multiplier * head @ (normed if gain is None else normed * gain.detach())
        logits = logits if cap is None else cap * torch.tanh(logits / cap)
        return logits - torch.logsumexp(logits, 0)

    answer: dict[str, list[float]] = {"kl": [], "agreement": [], "loss": [], "rms": [], "update": []}
    where = [(b, t) for b in range(len(inputs)) for t in range(inputs.shape[1]) if targets[b, t] >= 0]
    final = states[-1][1]
    for number, (site, state) in enumerate(states):
        if site.block == 0:
            continue
        sums = dict.fromkeys(answer, 0.0)
        for b, t in where:
            p, q = decode(final[b, t]), decode(state[b, t])
            read = states[number - 1][1][b, t]
            sums["kl"] += float((p.exp() * (p - q)).sum())
            sums["agreement"] += float(p.argmax() == q.argmax())
            sums["loss"] -= float(q[targets[b, t]])
            sums["rms"] += float(state[b, t].square().mean().sqrt())
            sums["update"] += float((state[b, t] - read).norm() / read.norm())
        for name, total in sums.items():
            answer[name].append(total / len(where))
    return answer


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chunk_tokens", [7, 512])
def test_it_equals_a_slow_lens(name: str, chunk_tokens: int) -> None:
    model, (inputs, targets) = MODELS[name](), batch()
    result = lens(model, [(inputs, targets)], chunk_tokens=chunk_tokens)
    expected = slow_lens(model, inputs, targets)
    assert result.executed_depth == model.executed_depth
    assert max(expected["kl"]) > 0.1  # there is something to measure
    for column, values in expected.items():
        # fp32 against float64: states differ by some 1e-6 of their size after a dozen products
        assert getattr(result, column) == pytest.approx(values, abs=1e-5, rel=1e-5), column
    assert result.kl[-1] == 0
    assert result.agreement[-1] == 1
    assert result.tokens == int((targets >= 0).sum())


def test_the_last_loss_is_the_models() -> None:
    model, (inputs, targets) = backbone(passes=2), batch()
    result = lens(model, [(inputs, targets)])
    assert result.loss[-1] == pytest.approx(float(model(inputs, targets)), abs=1e-6)


def test_batches_are_weighted_by_their_tokens_and_calls_repeat() -> None:
    model, (inputs, targets) = backbone(passes=2), batch()
    whole = lens(model, [(inputs, targets)])
    parts = lens(model, [(inputs[:1], targets[:1]), (inputs[1:], targets[1:])])
    assert parts.kl == pytest.approx(whole.kl, abs=1e-6)
    assert parts.tokens == whole.tokens
    assert lens(model, [(inputs, targets)]) == whole


def test_sites_follow_the_execution() -> None:
    readings = token_readings(grown(), batch()[0])
    assert [site_label(site) for site in readings.sites] == [
        "prelude 1", "core 1.1", "core 2.1", "core 3.1", "core 4.1", "coda 1",
    ]  # fmt: skip
    assert readings.kl.shape == (6, 3, 16)
    assert readings.loss.isnan().all()  # no targets
    assert readings.agreement[-1].all()


class Scaled:
    """A stream whose states, but for the last, are ten times as large."""

    def __init__(self, model: Backbone) -> None:
        self.inner = stream_of(model)
        self.depth = model.executed_depth

    def run(self, tokens_BT: Tensor, observe: Observer) -> None:
        seen = 0

        def scaled(site: Site, state: Tensor) -> None:
            nonlocal seen
            seen += site.block > 0
            observe(site, state if seen == self.depth else 10 * state)

        self.inner.run(tokens_BT, scaled)

    def decode(self, state: Tensor) -> Tensor:
        return self.inner.decode(state)


def test_the_size_of_a_state_does_not_matter() -> None:
    model, (inputs, targets) = backbone(passes=2), batch()
    plain, scaled = lens(model, [(inputs, targets)]), lens(Scaled(model), [(inputs, targets)])
    assert min(plain.rms) > 0.1  # far above the norm's eps of 2^-23
    for column in ("kl", "agreement", "loss"):
        assert getattr(scaled, column) == pytest.approx(getattr(plain, column), abs=1e-5)
    assert scaled.rms[0] == pytest.approx(10 * plain.rms[0], rel=1e-5)


def test_the_other_direction() -> None:
    model, (inputs, targets) = backbone(passes=2), batch()
    readings = token_readings(model, inputs)
    states: list[Tensor] = []
    model(inputs, observe=lambda site, state: states.append(state))
    p, q = (model.decode(state).log_softmax(-1) for state in (states[1], states[-1]))  # the first block's, the final
    backward = lens(model, [(inputs, targets)], direction="decoded_final")
    counts = targets >= 0
    assert backward.kl[0] == pytest.approx(float((p.exp() * (p - q)).sum(-1)[counts].mean()), abs=1e-5)
    assert backward.kl[0] != pytest.approx(float(readings.kl[0][counts].mean()), rel=1e-3)
    assert backward.to_dict()["direction"] == "decoded_final"


# --- effective depth


@pytest.mark.parametrize(
    ("kl", "depth"),
    [
        ([5.0, 4.0, 3.0, 1.0, 0.0], 4),
        ([1.0, 5.0, 1.5, 3.0, 0.0], 3),  # low before the peak does not count, nor does what comes after the crossing
        ([4.0, 6.0, 6.0, 2.0, 0.0], 4),  # a tie takes the first peak; the threshold itself is low enough
        ([6.0, 2.0, 6.0, 0.0], 2),
        ([0.5, 1.9, 0.3, 0.0], 2),  # a peak below the threshold: its own place
        ([0.0, 0.0, 0.0], 1),
        ([0.0], 1),
        ([9.0, 9.0, 9.0, 0.0], 4),
        ([9.0, 5.0], 2),  # never low: a boundary operator follows the last block
    ],
)
def test_effective_depth_of_known_curves(kl: list[float], depth: int) -> None:
    assert effective_depth(kl) == depth


def test_the_threshold_is_a_choice() -> None:
    curve = [5.0, 4.0, 3.0, 1.0, 0.0]
    assert [effective_depth(curve, threshold) for threshold in (0.0, 1.0, 3.5, 9.0)] == [5, 4, 3, 1]


@pytest.mark.parametrize(("threshold", "depth"), [(0.0, 4), (1e9, 1)])
def test_a_core_that_is_the_identity(threshold: float, depth: int) -> None:
    """The KL curve is flat from the prelude to the last pass: its first argmax is block 1, and only the coda, block
    P + K·C + D = 4, brings it to zero. Below the threshold throughout, the answer is the peak's place, 1."""
    model = backbone(passes=2, **VANILLA)
    with torch.no_grad():
        for name, parameter in model.cores.named_parameters():
            if name.endswith(("out.weight", "down.weight")):
                parameter.zero_()
    result = lens(model, [batch()], threshold=threshold)
    assert result.kl[0] > 0.1
    assert result.kl[0] == result.kl[1] == result.kl[2]
    assert result.update[1] == result.update[2] == 0
    assert result.effective_depth == depth


def test_an_untrained_model_predicts_the_same_everywhere() -> None:
    model = Backbone(BackboneConfig(**TINY, passes=2)).eval()  # the head starts at zero
    result = lens(model, [batch()])
    assert result.kl == (0, 0, 0, 0)
    assert result.agreement == (1, 1, 1, 1)
    assert result.effective_depth == 1
    assert result.loss[0] == pytest.approx(math.log(61), abs=1e-6)


def test_one_token_is_enough() -> None:
    result = lens(backbone(), [batch(rows=2, tokens=1)][:1])
    assert result.tokens == 1  # the first row's target does not count
    assert all(map(math.isfinite, result.kl))


def test_windows_are_read_as_pairs_are() -> None:
    windows = torch.randint(0, 61, (4, 17), generator=torch.Generator().manual_seed(5))
    assert lens(backbone(), windows.split(2)) == lens(backbone(), [(w[:, :-1], w[:, 1:]) for w in windows.split(2)])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ((torch.full((1, 5), 61), torch.zeros(1, 5)), "tokens = 61: the model's vocabulary has ids from 0 to 60"),
        ((torch.zeros(1, 5).int(), torch.full((1, 5), 61)), "targets = 61: the model's vocabulary"),
        ((torch.zeros(1, 5).int(), torch.zeros(1, 4)), r"batch = \[\[1, 5\], \[1, 4\]\]: inputs and targets must have"),
        (torch.zeros(5).int(), r"batch = \[5\]: windows of token ids are"),
        ({"inputs": 1, "targets": 2}, "batch = 'dict': must be windows"),
    ],
)
def test_batches_that_no_model_can_read_are_refused(wrong: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        lens(backbone(), [wrong])


def test_nothing_to_score_is_said() -> None:
    inputs, targets = batch()
    for batches in ([], [(inputs, torch.full_like(targets, -100))]):
        with pytest.raises(InputError, match="nothing to score"):
            lens(backbone(), batches)
    with pytest.raises(InputError, match="nothing to score"):
        token_readings(backbone(), inputs[:0])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"threshold": -1.0}, "threshold = -1"),
        ({"direction": "up"}, "direction = 'up'"),
        ({"chunk_tokens": 0}, "chunk"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        lens(backbone(), [batch()], **arguments)


def test_wrong_curves_are_refused() -> None:
    for curve in ([], [1.0, math.nan, 0.0]):
        with pytest.raises(InputError, match="kl ="):
            effective_depth(curve)


class Given:
    """States that are logits."""

    def __init__(self, *states: Tensor) -> None:
        self.states = states

    def run(self, tokens_BT: Tensor, observe: Observer) -> None:
        observe(Site("prelude", 0, 0), self.states[0])
        for b, state in enumerate(self.states, start=1):
            observe(Site("prelude", 0, b), state)

    def decode(self, state: Tensor) -> Tensor:
        return state


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_logits_stay_finite(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    signs = (torch.rand(2, 1, 5, 50, generator=generator) > 0.5).double() * 2 - 1
    stream: ResidualStream = Given(*(1e4 * signs).to(dtype))
    result = lens(stream, [(torch.zeros(1, 5, dtype=torch.long), torch.zeros(1, 5, dtype=torch.long))])
    assert all(map(math.isfinite, (*result.kl, *result.loss)))
    assert result.kl[1] == 0
    exact_p, exact_q = (state.to(dtype).double().log_softmax(-1) for state in (1e4 * signs[1], 1e4 * signs[0]))
    expected = float((exact_p.exp() * (exact_p - exact_q)).sum(-1).mean())
    assert result.kl[0] == pytest.approx(expected, rel=1e-5)


def test_mixed_precision() -> None:
    model, (inputs, targets) = backbone(passes=2), batch()
    plain = lens(model, [(inputs, targets)])
    with torch.autocast("cpu", torch.bfloat16):
        mixed = lens(model, [(inputs, targets)])
    assert mixed.kl[-1] == 0
    assert mixed.kl == pytest.approx(plain.kl, rel=0.1, abs=0.05)  # bf16 has 8 bits of mantissa


# --- models of others


class Foreign(nn.Module):
    """Someone's looped model: a block before, one that runs three times, one after; blocks return tuples."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> tuple[Tensor, None]:
            return x + torch.tanh(self.linear(x)), None

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.read, self.norm, self.write = nn.Embedding(61, 8), nn.LayerNorm(8), nn.Linear(8, 61)
        self.before, self.loop, self.after = self.Layer(), self.Layer(), self.Layer()

    def forward(self, tokens: Tensor) -> Tensor:
        x, _ = self.before(self.read(tokens))
        for _ in range(3):
            x, _ = self.loop(x)
        x, _ = self.after(x)
        logits: Tensor = self.write(self.norm(x))
        return logits


def test_a_foreign_model_through_hooks() -> None:
    model, (inputs, targets) = Foreign(), batch()
    stages = [("prelude", [model.before]), ("core", [model.loop]), ("coda", [model.after])]
    stream = HookedStream(model, stages, lambda x: model.write(model.norm(x)))  # type: ignore[arg-type]
    result = lens(stream, [(inputs, targets)])
    assert result.labels == ["prelude 1", "core 1.1", "core 2.1", "core 3.1", "coda 1"]
    loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    assert result.loss[-1] == pytest.approx(float(loss), abs=1e-6)
    assert result.kl[0] > result.kl[-1] == 0
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_hooks_read_a_backbone_as_its_own_observer_does() -> None:
    model, (inputs, targets) = backbone(passes=3, tied=False), batch()
    cores: list[Any] = [("core", list(core)) for core in model.cores]  # type: ignore[call-overload]
    hooked = HookedStream(model, [("prelude", list(model.prelude)), *cores, ("coda", list(model.coda))], model.decode)
    assert lens(hooked, [(inputs, targets)]) == lens(model, [(inputs, targets)])


def test_a_model_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(InputError, match=r"model = Linear: has no Backbone; read it through a HookedStream"):
        lens(nn.Linear(2, 2), [batch()])
    with pytest.raises(InputError, match="stages = 'core': has no blocks"):
        HookedStream(nn.Linear(2, 2), [("core", [])], nn.Identity())


# --- memory


def test_memory_grows_with_neither_depth_nor_tokens_times_vocabulary(
    root: Path, load_script: Callable[[Path], ModuleType]
) -> None:
    """The benchmark measures the real sizes; here a chunk of logits (64 tokens) is a sixteenth of all."""
    rows, tokens, vocabulary = 4, 256, 4096
    peak_bytes, cpu = load_script(root / "benchmarks" / "lens_memory.py").peak_bytes, torch.device("cpu")

    def both(core: int) -> tuple[int, int]:
        model = backbone(vocabulary=vocabulary, context=tokens, core=core, passes=2)
        inputs, targets = batch(rows, tokens, vocabulary)
        with torch.no_grad():
            step = peak_bytes(lambda: model(inputs, targets, reduction="none"), cpu)
        return step, peak_bytes(lambda: lens(model, [(inputs, targets)], chunk_tokens=64), cpu)

    step, shallow = both(core=1)
    _, deep = both(core=11)
    assert step >= 4 * rows * tokens * vocabulary  # the profiler sees the validation step's logits
    assert deep <= 1.5 * step
    # Per block the lens keeps six numbers for each token, up to 8 bytes each.
    assert deep - shallow <= 20 * rows * tokens * 6 * 8 * 3


def test_results_say_how_they_were_made() -> None:
    result = lens(backbone(passes=2), [batch()], threshold=0.5)
    plain = result.to_dict()
    assert isinstance(result, LensResult)
    assert (plain["threshold_nats"], plain["direction"], plain["tokens"]) == (0.5, "final_decoded", 43)
    assert plain["effective_depth"] == effective_depth(result.kl, 0.5)
    assert plain["blocks"][1]["stage"] == "core"
    assert plain["blocks"][1]["pass"] == 1
