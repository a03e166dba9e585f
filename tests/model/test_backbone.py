"""Invariants of the backbone. Matrices that start at zero are perturbed first, or most of them hold trivially."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

from looplit.accounting.flops import flops_per_token, stored_parameters
from looplit.errors import InputError
from looplit.model.backbone import Backbone, Site
from looplit.model.block import rotary_tables, rotate
from looplit.model.config import BackboneConfig
from looplit.model.growth import grow
from looplit.model.precision import rms_norm
from looplit.recipes.families import FAMILIES

TOKENS = 24


def build(**changes: object) -> Backbone:
    """A small backbone in float64 whose every matrix is random."""
    fields: dict[str, object] = {
        "width": 32, "heads": 2, "prelude": 1, "core": 2, "coda": 1, "vocabulary": 61, "context": TOKENS,
        "residual_multiplier": 0.5, "output_multiplier": 0.7, **changes,
    }  # fmt: skip
    model = Backbone(BackboneConfig(**fields), seed=3)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5)
    return model.double()


@pytest.fixture
def tokens_BT() -> Tensor:
    return torch.randint(0, 61, (2, TOKENS), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_a_tied_core_equals_its_unrolled_copy(tokens_BT: Tensor, passes: int) -> None:
    tied = build(passes=passes, injection_scale=0.707)
    untied = build(passes=passes, tied=False, injection_scale=0.707)
    for core in untied.cores:
        core.load_state_dict(tied.cores[0].state_dict())
    for stage in ("embedding", "prelude", "coda", "head"):
        getattr(untied, stage).load_state_dict(getattr(tied, stage).state_dict())
    torch.testing.assert_close(untied(tokens_BT), tied(tokens_BT), rtol=0, atol=0)


def test_vanilla_is_a_plain_stack(tokens_BT: Tensor) -> None:
    """K = 1 with identity boundaries: embed, norm, every block in turn, norm, head."""
    model = build(boundary="identity", coda_boundary="identity")
    x = rms_norm(model.embedding(tokens_BT))
    rotary = model.rotary_cos[:TOKENS], model.rotary_sin[:TOKENS]
    for block in model.blocks():
        x = block(x, *rotary)
    logits = 0.7 * rms_norm(x) @ model.head.weight[:61].T
    torch.testing.assert_close(model(tokens_BT), logits)


def test_operator_1_has_the_parameters_and_flops_of_vanilla() -> None:
    for depth in range(4, 27, 2):
        vanilla, operator = (FAMILIES[name].backbone(depth) for name in ("vanilla", "operator_1"))
        assert stored_parameters(vanilla) == stored_parameters(operator)
        assert flops_per_token(vanilla) == flops_per_token(operator)


@pytest.mark.parametrize("boundary", ["identity", "norm_inject"])
@pytest.mark.parametrize("passes", [1, 8])
@pytest.mark.parametrize("grown", [False, True])
def test_no_position_sees_later_tokens(tokens_BT: Tensor, boundary: str, passes: int, grown: bool) -> None:
    model = build(boundary=boundary, coda_boundary=boundary, passes=passes, tied=False, stored_cores=2 * passes)
    if grown:
        grow(model, 2 * passes)
    before = model(tokens_BT)
    for position in range(TOKENS):
        changed = tokens_BT.clone()
        changed[:, position] = (changed[:, position] + 1) % 61
        after = model(changed)
        assert torch.equal(after[:, :position], before[:, :position])
        assert not torch.equal(after[:, position], before[:, position])


class TestFirstPass:
    """SPEC of the first pass, with α = 0.707 so that the two rules differ."""

    def first_read(self, tokens_BT: Tensor, **changes: object) -> tuple[Tensor, Tensor]:
        states: dict[Site, Tensor] = {}
        model = build(**changes)
        model(tokens_BT, observe=states.__setitem__)
        return states[Site("prelude", 0, 1)], states[Site("core", 1, 0)]

    @pytest.mark.parametrize("boundary", ["inject", "norm_inject"])
    def test_with_a_zero_state_it_reads_alpha_e(self, tokens_BT: Tensor, boundary: str) -> None:
        e, read = self.first_read(tokens_BT, boundary=boundary, injection_scale=0.707)
        assert torch.equal(read, 0.707 * e)

    @pytest.mark.parametrize("boundary", ["inject", "norm_inject"])
    def test_with_the_released_rule_it_reads_e(self, tokens_BT: Tensor, boundary: str) -> None:
        e, read = self.first_read(tokens_BT, boundary=boundary, injection_scale=0.707, initial_state="prelude")
        assert torch.equal(read, e)

    @pytest.mark.parametrize("boundary", ["identity", "norm"])
    def test_without_injection_it_reads_e_unnormalised(self, tokens_BT: Tensor, boundary: str) -> None:
        e, read = self.first_read(tokens_BT, boundary=boundary, coda_boundary="norm")
        assert torch.equal(read, e)


def test_boundaries_follow_their_equations(tokens_BT: Tensor) -> None:
    expected = {
        "identity": lambda h, e: h,
        "norm": lambda h, e: rms_norm(h),
        "inject": lambda h, e: h + 0.3 * e,
        "norm_inject": lambda h, e: rms_norm(h) + 0.3 * e,
    }
    for kind, operator in expected.items():
        states: dict[Site, Tensor] = {}
        model = build(boundary=kind, coda_boundary="inject", injection_scale=0.3, passes=2)
        model(tokens_BT, observe=states.__setitem__)
        e, h_1, h_2 = (states[site] for site in (Site("prelude", 0, 1), Site("core", 1, 2), Site("core", 2, 2)))
        torch.testing.assert_close(states[Site("core", 2, 0)], operator(h_1, e))
        torch.testing.assert_close(states[Site("coda", 0, 0)], h_2 + 0.3 * e)


def test_a_fresh_model_guesses_uniformly() -> None:
    model = Backbone(FAMILIES["untied_grow"].backbone(3, width=64, heads=1))
    tokens = torch.randint(0, 50257, (1, 16))
    assert float(model(tokens, tokens).detach()) == pytest.approx(math.log(50257), rel=1e-6)


def test_weights_do_not_depend_on_how_many_cores_wait() -> None:
    def config(stored: int) -> BackboneConfig:
        return BackboneConfig(
            width=32, heads=1, prelude=1, core=1, coda=1, passes=2, tied=False, stored_cores=stored, vocabulary=9
        )

    few, many = Backbone(config(2)).state_dict(), Backbone(config(6)).state_dict()
    assert all(torch.equal(many[name], value) for name, value in few.items())
    assert not torch.equal(few["cores.0.0.mlp.up.weight"], few["cores.1.0.mlp.up.weight"])


def test_initial_scales() -> None:
    config = BackboneConfig(
        width=128, heads=2, prelude=1, core=1, coda=1, vocabulary=999, embedding_std=0.03, uniform_init_scale=0.5
    )
    state = Backbone(config).state_dict()
    bound = 0.5 * 128**-0.5
    for name, value in state.items():
        if name.endswith(("out.weight", "down.weight", "head.weight")):
            assert not value.any()
        elif name == "embedding.weight":
            assert value.std() == pytest.approx(0.03, rel=0.02)  # 128k draws: 10 standard errors
        else:
            assert 0.99 * bound < value.abs().max() <= bound


def test_rotary_turns_by_minus_the_angle() -> None:
    cos, sin = rotary_tables(4, 3)
    x_BTHC = torch.tensor([1.0, 0, 0, 0]).expand(1, 3, 1, 4)
    turned = rotate(x_BTHC, cos, sin)
    for t in range(3):
        torch.testing.assert_close(turned[0, t, 0], torch.tensor([math.cos(t), 0, -math.sin(t), 0]))


def test_norm_epsilon_is_that_of_fp32() -> None:
    x = torch.full((1, 8), 1e-4)
    torch.testing.assert_close(rms_norm(x), x * (1e-8 + 2.0**-23) ** -0.5)


def test_the_residual_stream_stays_fp32_under_bf16(tokens_BT: Tensor) -> None:
    model = build().float()
    dtypes: set[torch.dtype] = set()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens_BT, observe=lambda site, state: dtypes.add(state.dtype))
    assert dtypes == {torch.float32}
    assert logits.dtype == torch.float32
    exact = model(tokens_BT)
    # bf16 has 8 bits: products of 32 terms through 4 blocks stay within a few percent of logits of size 1
    assert (logits - exact).abs().max() < 0.1 * exact.abs().max()
    assert not torch.equal(logits, exact)


def test_compiled_blocks_give_the_same(tokens_BT: Tensor) -> None:
    plain = build(passes=2).float()
    compiled = copy.deepcopy(plain)
    for block in compiled.blocks():
        block.compile()
    assert compiled.state_dict().keys() == plain.state_dict().keys()
    for passes in (2, 3):
        compiled.set_passes(passes)
        plain.set_passes(passes)
        torch.testing.assert_close(compiled(tokens_BT), plain(tokens_BT))


def test_observing_reads_every_block_and_changes_nothing(tokens_BT: Tensor) -> None:
    model = build(passes=3)
    sites: list[Site] = []
    observed = model(tokens_BT, observe=lambda site, state: sites.append(site))
    assert torch.equal(observed, model(tokens_BT))
    assert len([site for site in sites if site.block]) == model.executed_depth == 8
    assert sites[0] == Site("prelude", 0, 0)
    assert sites[-1] == Site("coda", 0, 1)


def test_the_last_state_decodes_to_the_logits(tokens_BT: Tensor) -> None:
    model, states = build(), []
    logits = model(tokens_BT, observe=lambda site, state: states.append(state))
    assert torch.equal(model.decode(states[-1]), logits)


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"heads": 3}, "heads = 3"),
            ({"heads": 32}, "heads = 32"),  # one dimension per head cannot be paired
            ({"core": 0}, "core = 0"),
            ({"passes": 0}, "passes = 0"),
            ({"passes": 3, "tied": False, "stored_cores": 2}, "passes = 3"),
            ({"stored_cores": 2}, "stored_cores = 2"),
            ({"boundary": "identity", "coda_boundary": "norm", "injection_scale": 0.5}, "injection_scale = 0.5"),
            ({"boundary": "add"}, "boundary = 'add'"),
            ({"initial_state": "e"}, "initial_state = 'e'"),
            ({"embedding_std": math.nan}, "embedding_std = nan"),
        ],
    )
    def test_of_a_shape(self, changes: dict[str, object], named: str) -> None:
        with pytest.raises(InputError, match=named):
            build(**changes)

    def test_of_more_passes_than_stored(self) -> None:
        with pytest.raises(InputError, match="passes = 3: .* at most its 2 stored cores"):
            build(passes=2, tied=False).set_passes(3)
        tied = build()
        tied.set_passes(20)
        assert tied.passes == 20

    def test_of_too_long_a_window(self) -> None:
        with pytest.raises(InputError, match=f"tokens = {TOKENS + 1}"):
            build()(torch.zeros(1, TOKENS + 1, dtype=torch.long))
