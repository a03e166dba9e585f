"""Truncated backpropagation through the passes (truncation study, (T, B))."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from looplit.accounting.flops import flops_per_token, loop_cost
from looplit.errors import InputError
from looplit.model.backbone import Backbone, Site
from looplit.model.config import BackboneConfig
from looplit.model.growth import grow
from looplit.optim import MuonAdamW

TOKENS = torch.randint(0, 61, (2, 16), generator=torch.Generator().manual_seed(1))


def build(passes: int, trained: int | None, boundary: str = "norm_inject", **changes: Any) -> Backbone:
    """Every matrix random, in float64: where matrices start at zero, or W at [I | 0], which hides the state, full and
    truncated gradients are the same.
    """
    config = BackboneConfig(
        width=32, heads=2, prelude=1, core=1, coda=1, vocabulary=61, context=16, passes=passes, trained_passes=trained,
        boundary=boundary, **changes,  # type: ignore[arg-type]
    )  # fmt: skip
    model = Backbone(config)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
    return model.double()


@pytest.fixture(scope="module")
def benchmark(root: Path, load_script: Callable[[Path], ModuleType]) -> ModuleType:
    """The benchmark of time and memory, which counts what a step keeps."""
    return load_script(root / "benchmarks" / "truncation.py")


def gradients(model: Backbone) -> dict[str, Tensor]:
    model(TOKENS, TOKENS).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_all_passes_trained_is_full_backpropagation() -> None:
    full, all_trained = gradients(build(4, None)), gradients(build(4, 4))
    assert all(torch.equal(full[name], value) for name, value in all_trained.items())


BOUNDARIES = [
    *({"boundary": kind} for kind in ("identity", "norm", "inject", "norm_inject")),
    {"boundary": "linear", "coda_boundary": "identity", "initial_state": "prelude"},
    {"boundary": "linear", "coda_boundary": "identity", "pass_norm": True, "gains": True, "soft_cap": 3.0},
]


@pytest.mark.parametrize("trained", [1, 2, 5])
@pytest.mark.parametrize("core", [{}, {"tied": False}], ids=["tied", "untied"])
@pytest.mark.parametrize("changes", BOUNDARIES, ids=lambda changes: "-".join(map(str, changes.values())))
def test_the_gradient_is_that_of_passes_by_hand(trained: int, core: dict[str, Any], changes: dict[str, Any]) -> None:
    """The slow way: the first passes of six under no_grad, the last ones with gradient, the state handed over."""
    model = build(6, trained, **core, **changes)
    truncated = gradients(model)
    loss = model(TOKENS, TOKENS)

    by_hand = build(6, None, **core, **changes)
    rotary = by_hand.rotary_cos[:16], by_hand.rotary_sin[:16]
    e = by_hand.prelude[0](by_hand.embedding_norm(by_hand.embedding(TOKENS)), *rotary)

    def one_pass(k: int, h: Tensor | None) -> Tensor:
        read = by_hand.boundary.first(e) if h is None else by_hand.boundary(h, e)
        return by_hand.pass_norm(by_hand.cores[0 if by_hand.tied else k][0](read, *rotary))

    h = None
    with torch.no_grad():
        for k in range(6 - trained):
            h = one_pass(k, h)
    for k in range(6 - trained, 6):
        h = one_pass(k, h)
    assert h is not None
    y = by_hand.coda[0](by_hand.coda_boundary(h, e), *rotary)
    slow = torch.nn.functional.cross_entropy(by_hand.decode(y).flatten(0, 1), TOKENS.flatten())
    slow.backward()
    torch.testing.assert_close(loss, slow)
    slow_gradients = {name: p.grad for name, p in by_hand.named_parameters() if p.grad is not None}
    assert truncated.keys() == slow_gradients.keys()
    for name, gradient in slow_gradients.items():
        torch.testing.assert_close(truncated[name], gradient, rtol=1e-9, atol=1e-12)
    full_model = build(6, None, **core, **changes)
    torch.testing.assert_close(full_model(TOKENS, TOKENS), loss, rtol=0, atol=0)  # B changes no value
    last = f"cores.{0 if by_hand.tied else 5}.0.mlp.up.weight"
    if by_hand.tied:
        assert not torch.allclose(truncated[last], gradients(full_model)[last])
    else:
        assert {name.split(".")[1] for name in truncated if "cores" in name} == {str(k) for k in range(6 - trained, 6)}
    if "inject" in changes["boundary"] or changes["boundary"] == "linear":
        assert truncated["prelude.0.mlp.up.weight"].any()


def test_the_linear_boundary_hides_the_state_at_the_start() -> None:
    """W = [I | 0]: every pass reads e, so that no gradient reaches an earlier pass."""
    full, truncated = (build(4, trained, "linear", coda_boundary="identity") for trained in (4, 1))
    for model in (full, truncated):
        with torch.no_grad():
            model.boundary.weight.zero_().fill_diagonal_(1.0)
    last = gradients(truncated)
    assert all(torch.allclose(last[name], value) for name, value in gradients(full).items())


def test_untied_cores_outside_the_window_are_left_alone() -> None:
    model = build(3, 1, tied=False).float()
    groups = [{"params": [p], "algorithm": "muon" if p.ndim == 2 else "adamw", "weight_decay": 0.1}
              for p in model.cores.parameters()]  # fmt: skip
    optimizer = MuonAdamW(groups)
    before = copy.deepcopy(model.cores.state_dict())
    model(TOKENS, TOKENS).backward()
    optimizer.step()
    changed = {name.split(".")[0] for name, value in model.cores.state_dict().items() if value.ne(before[name]).any()}
    assert changed == {"2"}


@pytest.mark.parametrize("boundary", ["norm_inject", "linear"])
def test_untrained_passes_leave_no_graph(boundary: str) -> None:
    states: dict[Site, Tensor] = {}
    build(4, 1, boundary, coda_boundary="identity")(TOKENS, TOKENS, observe=states.__setitem__)
    assert [states[Site("core", k, 1)].requires_grad for k in (1, 2, 3, 4)] == [False, False, False, True]


@pytest.mark.parametrize(("passes", "trained"), [(4, 1), (4, 4), (8, 2)])
def test_every_pass_runs_every_block_of_the_core_once(passes: int, trained: int) -> None:
    """T·core + prelude + coda block forwards, whatever B: nothing is run again for the backward."""
    config = BackboneConfig(
        width=32, heads=2, prelude=2, core=3, coda=1, vocabulary=61, context=16, passes=passes, trained_passes=trained
    )
    model, forwards = Backbone(config), []
    for block in model.blocks():
        block.register_forward_hook(lambda *_: forwards.append(1))
    model(TOKENS, TOKENS).backward()
    assert len(forwards) == passes * 3 + 2 + 1


def test_what_is_kept_for_the_backward_grows_with_the_trained_passes_alone(benchmark: ModuleType) -> None:
    kept = {(T, B): benchmark.saved_bytes(build(T, B), TOKENS) for T, B in ((4, 2), (8, 1), (8, 2), (8, 3), (16, 2))}
    assert kept[4, 2] == kept[8, 2] == kept[16, 2]
    of_a_pass = kept[8, 2] - kept[8, 1]
    assert kept[8, 3] - kept[8, 2] == of_a_pass
    config = build(1, 1).config
    read_by_products = 3 * config.width + config.hidden  # by q, k and v; out; gate and up; down
    assert of_a_pass > TOKENS.numel() * read_by_products * torch.float64.itemsize


@pytest.mark.parametrize("boundary", ["norm_inject", "linear"])
def test_autocast_does_not_take_the_cast_weights_of_passes_without_gradient(boundary: str) -> None:
    """It keeps the weights that it has cast; those of a pass without a graph would leave the core without gradient."""
    model, precise = (build(4, 2, boundary, coda_boundary="identity") for _ in range(2))
    model.float()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(TOKENS, TOKENS)
    loss.backward()
    for name, expected in gradients(precise).items():
        found = model.get_parameter(name).grad
        assert found is not None, name
        assert torch.cosine_similarity(found.flatten(), expected.float().flatten(), dim=0) > 0.99, name  # bf16


def test_the_benchmark_compares_the_cores_part_with_the_law(
    benchmark: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = "--width 32 --head_dim 16 --context 16 --batch 1 --split 1 1 1 --vocabulary 61 --repeats 1"
    benchmark.main(tiny.split())
    result = json.loads(capsys.readouterr().out)
    assert result["core_time_ratio_by_law"] == (8 + 2 * 2) / (8 + 2 * 8)
    assert result["core_saved_ratio"] == pytest.approx(2 / 8, rel=0.05)  # the first pass has no norm to keep
    assert result["measured"]["(8,2)"]["step_s"] > result["measured"]["(8,2)"]["core_s"]


def test_growing_passes_keep_the_trained_ones() -> None:
    model = build(2, 2)
    model.set_passes(4)
    states: dict[Site, Tensor] = {}
    model(TOKENS, TOKENS, observe=states.__setitem__)
    assert [states[Site("core", k, 1)].requires_grad for k in (1, 2, 3, 4)] == [False, False, True, True]
    model.set_passes(1)  # fewer passes than trained ones: all of them are trained
    model(TOKENS, TOKENS).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("boundary", ["norm_inject", "linear"])
def test_grown_passes_have_the_gradient_of_a_model_built_so(boundary: str) -> None:
    grown, built = build(4, 2, boundary, coda_boundary="identity"), build(6, 2, boundary, coda_boundary="identity")
    grow(grown, 6)
    theirs = gradients(built)
    assert all(torch.equal(theirs[name], value) for name, value in gradients(grown).items())


@pytest.mark.parametrize("trained", [0, 3])
def test_other_numbers_are_refused(trained: int) -> None:
    with pytest.raises(InputError, match=f"trained_passes = {trained}: .* 1 to all 2 passes"):
        build(2, trained)


def test_flops_follow_the_cost_of_the_law() -> None:
    """A core pass costs T + 2B forward units: what truncation saves is 2 units for each pass without gradient."""
    full, truncated = build(8, None).config, build(8, 2).config
    saved = flops_per_token(full) - flops_per_token(truncated)
    unit = (flops_per_token(full, 2) - flops_per_token(full, 1)) / 3
    assert saved == unit * (loop_cost(8, 8) - loop_cost(8, 2))


@pytest.mark.parametrize("coda_boundary", ["norm_inject", "identity"])
@pytest.mark.parametrize("boundary", ["norm", "norm_inject", "linear"])
@pytest.mark.parametrize("stored", [None, 4], ids=["tied", "untied"])
def test_the_config_knows_what_gets_no_gradient(stored: int | None, boundary: str, coda_boundary: str) -> None:
    for trained, passes in ((3, 3), (1, 3), (3, 4), (3, 1)):
        model = build(3, trained, boundary, coda_boundary=coda_boundary, tied=stored is None, stored_cores=stored)
        model.set_passes(passes)
        idle = gradients(model).keys() < dict(model.named_parameters()).keys()
        assert model.config.leaves_idle(passes) is idle, (trained, passes)
