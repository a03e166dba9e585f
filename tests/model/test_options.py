"""Options of the truncation study's backbone: MLP, gains, norms, soft cap, linear boundary, initial weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from looplit.accounting.flops import (
    active_blocks,
    block_parameters,
    compute_parameters,
    flops_per_token,
    gain_parameters,
    initial_parameters,
    nonembedding_parameters,
    once_parameters,
    recurrent_parameters,
    stored_parameters,
)
from looplit.errors import InputError
from looplit.model.backbone import Backbone, Site
from looplit.model.config import BackboneConfig
from looplit.model.growth import grow
from looplit.model.precision import rms_norm
from looplit.planning.resources import activation_bytes
from looplit.recipes.truncation_study import truncated_backbone

TOKENS = torch.randint(0, 61, (2, 12), generator=torch.Generator().manual_seed(1))
SMALL: dict[str, Any] = {"width": 32, "heads": 2, "prelude": 1, "core": 2, "coda": 1, "vocabulary": 61, "context": 12}
LINEAR = {"boundary": "linear", "coda_boundary": "identity"}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"mlp": "squared_relu"},
    {"gains": True},
    {"gains": True, "pass_norm": True},
    {"pass_norm": True},
    LINEAR,
    {"soft_cap": 2.0},
    {"mlp": "squared_relu", "gains": True, "pass_norm": True, "soft_cap": 2.0, **LINEAR},
]


def build(**changes: Any) -> Backbone:
    """A small float64 model whose every parameter is random."""
    model = Backbone(BackboneConfig(**{**SMALL, **changes}), seed=3)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
    return model.double()


def states_of(model: Backbone) -> dict[Site, Tensor]:
    states: dict[Site, Tensor] = {}
    model(TOKENS, observe=states.__setitem__)
    return states


@pytest.mark.parametrize("core", [{"passes": 3}, {"passes": 2, "tied": False, "stored_cores": 4}])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_counts_equal_what_is_built(options: dict[str, Any], core: dict[str, Any]) -> None:
    model = Backbone(BackboneConfig(**{**SMALL, **core, **options}))
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert stored_parameters(model.config) == sum(sizes.values())
    outside = sum(size for name, size in sizes.items() if not name.startswith(("embedding.w", "head.w")))
    assert nonembedding_parameters(model.config) == outside
    dormant = sum(size for name, size in sizes.items() if name.startswith(("cores.2", "cores.3")))
    assert initial_parameters(model.config) == sum(sizes.values()) - dormant
    recurrent = ("cores.0.", "boundary.", "pass_norm.")
    assert recurrent_parameters(model.config) == sum(n for name, n in sizes.items() if name.startswith(recurrent))
    once = ("prelude", "coda", "embedding_norm", "head_norm")
    assert once_parameters(model.config) == sum(n for name, n in sizes.items() if name.startswith(once))
    assert gain_parameters(model.config) == sum(n for name, n in sizes.items() if name.endswith("gain"))
    assert block_parameters(model.config) == sum(p.numel() for p in next(model.blocks()).parameters())


@pytest.mark.parametrize("options", OPTIONS[:4], ids=str)
def test_the_memory_estimate_is_what_a_block_keeps(options: dict[str, Any]) -> None:
    """Bytes of all that autograd saves, of a model with one block more: without those of its weights."""

    def kept(prelude: int) -> int:
        model = Backbone(BackboneConfig(**{**SMALL, "width": 128, "context": 64, "prelude": prelude, **options}))
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        saved: dict[int, Tensor] = {}

        def pack(tensor: Tensor) -> Tensor:
            saved[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        tokens = torch.zeros(1, 64, dtype=torch.long)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(tokens, tokens)
        return sum(tensor.untyped_storage().nbytes() for at, tensor in saved.items() if at not in weights)

    def estimate(prelude: int) -> int:
        config = BackboneConfig(**{**SMALL, "width": 128, "context": 64, "prelude": prelude, **options})
        return activation_bytes(config, 1, 1, "32-true")

    # The estimate leaves out what has no width: mean squares, the attention's log-sums.
    assert kept(3) - kept(2) == pytest.approx(estimate(3) - estimate(2), rel=0.01)


@pytest.mark.parametrize("trained", [1, 3, 4])
@pytest.mark.parametrize("options", OPTIONS[-3:] + OPTIONS[1:2], ids=str)
def test_flops_equal_torchs_counter(options: dict[str, Any], trained: int) -> None:
    model = Backbone(BackboneConfig(**{**SMALL, "vocabulary": 64, "passes": 4, "trained_passes": trained, **options}))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(TOKENS).sum().backward()
    # With injection the first trained pass needs the gradient of what it reads, as every block does.
    assert counter.get_total_flops() == TOKENS.numel() * flops_per_token(model.config, attention="full")
    full, causal = (flops_per_token(model.config, gradient_passes=4, attention=kind) for kind in ("full", "causal"))
    weights = 6 * compute_parameters(model.config)
    assert (full - weights) * 13 == (causal - weights) * 2 * 12


def test_the_linear_boundary_mixes_e_and_the_state() -> None:
    for initial_state in ("zero", "prelude"):
        model = build(passes=2, initial_state=initial_state, **LINEAR)
        states, weight = states_of(model), model.boundary.weight
        e, h_1 = states[Site("prelude", 0, 1)], states[Site("core", 1, 2)]
        h_0 = e if initial_state == "prelude" else torch.zeros_like(e)
        torch.testing.assert_close(states[Site("core", 1, 0)], torch.cat((e, h_0), -1) @ weight.T)
        torch.testing.assert_close(states[Site("core", 2, 0)], e @ weight[:, :32].T + h_1 @ weight[:, 32:].T)
        assert torch.equal(states[Site("coda", 0, 0)], states[Site("core", 2, 2)])


def test_every_pass_reads_e_at_first() -> None:
    config = truncated_backbone(32, 3, split=(1, 1, 1), vocabulary=61, context=12)
    states = states_of(Backbone(config))
    assert all(torch.equal(states[Site("core", k, 0)], states[Site("prelude", 0, 1)]) for k in (1, 2, 3))


def test_the_state_is_normalised_after_every_pass() -> None:
    model = build(passes=2, pass_norm=True, gains=True, boundary="identity", coda_boundary="identity")
    states, gain = states_of(model), model.pass_norm.gain
    for read, given in ((Site("core", 2, 0), Site("core", 1, 2)), (Site("coda", 0, 0), Site("core", 2, 2))):
        torch.testing.assert_close(states[read], rms_norm(states[given]) * gain)


def test_gains_multiply_what_the_norms_give() -> None:
    """Gains of one change nothing; a gain of the MLP's norm is a scale of the columns that read it."""
    plain, gained = build(), build(gains=True)
    gained.load_state_dict(plain.state_dict(), strict=False)
    with torch.no_grad():
        for name, parameter in gained.named_parameters():
            if name.endswith("gain"):
                parameter.fill_(1.0)
    assert torch.equal(gained(TOKENS), plain(TOKENS))
    scale = torch.rand(32, dtype=torch.float64) + 0.5
    with torch.no_grad():
        for norm, readers in (
            ("coda.0.mlp_norm", (plain.coda[0].mlp.gate, plain.coda[0].mlp.up)),
            ("prelude.0.attention_norm", [getattr(plain.prelude[0].attention, name) for name in "qkv"]),
            ("head_norm", (plain.head,)),
        ):
            gained.get_submodule(norm).gain.copy_(scale)
            for reader in readers:
                reader.weight.mul_(scale)
    torch.testing.assert_close(gained(TOKENS), plain(TOKENS))


def test_the_squared_relu_follows_its_equation() -> None:
    mlp = build(mlp="squared_relu").coda[0].mlp
    x = torch.randn(3, 32, dtype=torch.float64)
    torch.testing.assert_close(mlp(x), (x @ mlp.up.weight.T).clamp(min=0) ** 2 @ mlp.down.weight.T)
    assert mlp.up.weight.shape == (128, 32)


def test_the_soft_cap_bounds_logits_loss_and_readout() -> None:
    capped, free = build(soft_cap=0.5, output_multiplier=2.0), build(output_multiplier=2.0)
    logits = 0.5 * torch.tanh(free(TOKENS) / 0.5)
    torch.testing.assert_close(capped(TOKENS), logits)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), TOKENS.flatten())
    torch.testing.assert_close(capped(TOKENS, TOKENS), expected)
    torch.testing.assert_close(capped(TOKENS, readout=capped.decode_normed), logits)


def test_the_residual_stream_stays_fp32_under_bf16() -> None:
    model = build(passes=3, **OPTIONS[-1]).float()
    dtypes: set[torch.dtype] = set()
    with torch.autocast("cpu", torch.bfloat16):
        model(TOKENS, observe=lambda site, state: dtypes.add(state.dtype))
    assert dtypes == {torch.float32}


def test_growth_copies_gains_and_shares_the_boundary() -> None:
    model = build(passes=2, tied=False, stored_cores=4, **OPTIONS[-1])
    before = model.boundary.weight.clone()
    grow(model, 4)
    for name, value in model.cores[3].state_dict().items():
        assert torch.equal(value, model.cores[1].state_dict()[name])
    assert "0.attention_norm.gain" in model.cores[3].state_dict()
    assert torch.equal(model.boundary.weight, before)
    assert active_blocks(model.config, 4) == 10


def test_initial_scales_of_the_truncation_study() -> None:
    config = truncated_backbone(128, 2, split=(1, 1, 1), vocabulary=999)
    for name, value in Backbone(config).state_dict().items():
        if name.endswith("gain"):
            assert torch.equal(value, torch.ones(128))
        elif name == "boundary.weight":
            assert torch.equal(value, torch.cat((torch.eye(128), torch.zeros(128, 128)), 1))
        elif name in ("embedding.weight", "head.weight"):
            assert value.std() == pytest.approx(1.0 if name[0] == "e" else 0.001, rel=0.02)  # 10 standard errors
        else:
            std = (4 * 128 if "down" in name else 128) ** -0.5
            assert value.std() == pytest.approx(std, rel=0.03), name  # 16k draws: 6 standard errors of a uniform's
            assert value.abs().max() <= math.sqrt(3) * std


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"coda_boundary": "linear"}, "coda_boundary = 'linear': .* before each pass"),
        ({**LINEAR, "injection_scale": 0.5}, "injection_scale = 0.5: nothing is injected by α under boundary linear"),
        ({"mlp": "relu"}, "mlp = 'relu': must be one of swiglu, squared_relu"),
        ({"soft_cap": 0.0}, "soft_cap = 0.0"),
        ({"head_std": -1.0}, "head_std = -1.0"),
    ],
)
def test_refusals(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        build(**changes)
