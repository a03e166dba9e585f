"""Parameters, FLOPs and relations: hand counts, the study's printed numbers, and torch's own counter."""

from __future__ import annotations

import dataclasses

import pytest

from looplit.accounting.flops import (
    active_blocks,
    block_parameters,
    compute_parameters,
    flops_per_token,
    initial_parameters,
    loop_cost,
    nonembedding_parameters,
    stored_parameters,
    training_flops,
    truncated_compute_parameters,
)
from looplit.errors import InputError
from looplit.model.config import BackboneConfig
from looplit.recipes.families import FAMILIES
from looplit.recipes.relations import (
    compute_expansion,
    grown_compute_parameters,
    growth_expansion,
    mean_passes,
    optimal_compute_expansion,
    optimal_growth_fraction,
    optimal_growth_tokens,
    optimal_tokens_per_parameter,
    storage_expansion,
    tokens_per_parameter,
)

SMALL = BackboneConfig(width=64, heads=2, prelude=1, core=2, coda=1, passes=3, vocabulary=100, context=32)
UNTIED = dataclasses.replace(SMALL, tied=False, passes=2, stored_cores=4)

# Table 2, rounded to two digits.
TABLE_2 = {
    "vanilla": "120M 210M 330M 490M 730M 1.0B 1.4B 1.8B 2.4B 3.0B 3.8B",
    "loop_grow": "120M 210M 330M 490M 730M 1.0B 1.4B 1.8B 2.4B 3.0B 3.8B",
    "untied_2": "130M 240M 410M 610M 920M 1.3B 1.8B 2.4B 3.2B 3.9B 5.0B",
    "untied_grow": "160M 320M 580M 830M 1.3B 2.0B 2.5B 3.5B 4.7B 5.7B 7.4B",
}


def test_hand_count_of_a_small_tied_model():
    # hidden 256·ceil(170/256) = 256; block 4·64² + 3·64·256; vocabulary 128 rows
    block = 16_384 + 49_152
    assert block_parameters(SMALL) == block
    assert stored_parameters(SMALL) == initial_parameters(SMALL) == 2 * 128 * 64 + 4 * block
    assert nonembedding_parameters(SMALL) == 4 * block
    assert compute_parameters(SMALL) == (1 + 3 * 2 + 1) * block + 128 * 64
    assert flops_per_token(SMALL) == 6 * (8 * block + 128 * 64) + 8 * 6 * 64 * 33


def test_hand_count_of_a_small_untied_model_before_and_after_growth():
    block = block_parameters(UNTIED)
    assert active_blocks(UNTIED) == 6
    assert active_blocks(UNTIED, 4) == 10
    assert stored_parameters(UNTIED) - initial_parameters(UNTIED) == 4 * block
    assert flops_per_token(UNTIED, 4) - flops_per_token(UNTIED) == 4 * (6 * block + 6 * 64 * 33)


@pytest.mark.parametrize("family", TABLE_2)
def test_stored_parameters_round_to_table_2(family):
    for depth, printed in zip(range(6, 27, 2), TABLE_2[family].split(), strict=True):
        stored = stored_parameters(FAMILIES[family].backbone(depth))
        rounded = f"{stored / 1e9:.1f}B" if stored >= 0.995e9 else f"{round(stored / 1e7) * 10}M"
        assert rounded == printed, depth


def test_exact_parameters():
    assert stored_parameters(FAMILIES["vanilla"].backbone(6)) == 119_734_272
    assert stored_parameters(FAMILIES["untied_2"].backbone(8)) == 244_318_208
    assert stored_parameters(FAMILIES["untied_grow"].backbone(26)) == 7_424_049_152
    assert initial_parameters(FAMILIES["untied_grow"].backbone(26)) == 5_016_387_584


def test_operator_1_costs_what_vanilla_costs():
    operator, vanilla = FAMILIES["operator_1"].backbone(9), FAMILIES["vanilla"].backbone(9)
    assert stored_parameters(operator) == stored_parameters(vanilla)
    assert flops_per_token(operator) == flops_per_token(vanilla)


def test_untied_costs_what_loop_costs():
    assert flops_per_token(FAMILIES["untied_2"].backbone(9)) == flops_per_token(FAMILIES["loop_2"].backbone(9))


@pytest.mark.parametrize("config", [SMALL, UNTIED], ids=["tied", "untied"])
def test_flops_equal_torchs_counter(config):
    torch = pytest.importorskip("torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from looplit.model.backbone import Backbone

    # The vocabulary fills its padded matrix: the model multiplies by the real columns only.
    config = dataclasses.replace(config, vocabulary=128)
    model = Backbone(config)
    tokens_BT = torch.randint(0, 128, (2, 32))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens_BT).sum().backward()
    # The counter sees the full attention square, T keys per query where causal attention has (T + 1)/2 on average,
    # and no embedding lookup. It leaves out nothing else, so equality is exact.
    assert counter.get_total_flops() == 64 * flops_per_token(config, attention="full")
    causal, full = (flops_per_token(config, attention=kind) for kind in ("causal", "full"))
    weights = 6 * compute_parameters(config)
    assert (full - weights) * 33 == (causal - weights) * 2 * 32


def test_training_flops_add_up_over_phases():
    before, after = flops_per_token(SMALL, 2), flops_per_token(SMALL, 4)
    assert training_flops(SMALL, [(2, 70), (4, 30)], 1000) == 1000 * (70 * before + 30 * after)


def test_truncation_costs_a_third_of_the_passes_without_gradient():
    core_pass = flops_per_token(SMALL, 4) - flops_per_token(SMALL, 3)
    assert flops_per_token(SMALL, 8, gradient_passes=8) == flops_per_token(SMALL, 8)
    assert flops_per_token(SMALL, 8) - flops_per_token(SMALL, 8, gradient_passes=2) == 6 * core_pass * 2 // 3
    once, core = 2 * block_parameters(SMALL), 2 * block_parameters(SMALL)
    assert truncated_compute_parameters(SMALL, 8, 2) == once + 12 / 3 * core
    assert [loop_cost(T, B) for T, B in ((1, 1), (8, 2), (16, 16))] == [3, 12, 48]
    # T + 2B units: the core's weights alone, in thirds of a trained pass
    weights = 6 * truncated_compute_parameters(SMALL, 8, 2) + 6 * 128 * 64
    attention = (2 + 12 / 3 * 2) * 6 * 64 * 33
    assert flops_per_token(SMALL, 8, gradient_passes=2) == weights + attention


def test_truncated_training_trains_all_passes_of_a_shorter_phase():
    phases = [(1, 3), (4, 5)]
    cost = 3 * flops_per_token(SMALL, 1) + 5 * flops_per_token(SMALL, 4, gradient_passes=2)
    assert training_flops(SMALL, phases, 10, gradient_passes=2) == 10 * cost


@pytest.mark.parametrize("arguments", [{"gradient_passes": 4}, {"gradient_passes": -1}, {"attention": "half"}])
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(InputError, match=next(iter(arguments))):
        flops_per_token(SMALL, 3, **arguments)


def test_fixed_recurrence_relations():
    tied, untied = FAMILIES["loop_2"].backbone(12), FAMILIES["untied_2"].backbone(12)
    block, head = block_parameters(tied), 50304 * 1536
    expected = ((4 + 3 * 4 + 4) * block + head) / ((4 + 4 + 4) * block + head)
    assert compute_expansion(tied, 3) == compute_expansion(untied, 3) == pytest.approx(expected, rel=1e-15)
    assert storage_expansion(tied, 3) == 1
    assert storage_expansion(untied, 3) == pytest.approx((20 * block + 2 * head) / (12 * block + 2 * head), rel=1e-15)
    # TPP_K keeps the compute: TPP_K·N_s,K·N_c,K = TPP_1·N_s,1·N_c,1
    at_3 = dataclasses.replace(untied, passes=3, stored_cores=3)
    at_1 = dataclasses.replace(untied, passes=1, stored_cores=1)
    spent = tokens_per_parameter(10, untied, 3) * initial_parameters(at_3) * compute_parameters(at_3)
    assert spent == pytest.approx(10 * initial_parameters(at_1) * compute_parameters(at_1), rel=1e-14)


def test_fitted_relations():
    assert optimal_compute_expansion(10, tied=True) == pytest.approx(0.82 * 10**0.15)
    assert optimal_compute_expansion(10, tied=False) == pytest.approx(0.83 * 10**0.15)
    assert optimal_tokens_per_parameter(10, tied=True) == pytest.approx(1.19 * 10**0.85)
    assert optimal_tokens_per_parameter(10, tied=False) == pytest.approx(1.34 * 10**0.74)
    assert optimal_growth_tokens(10, tied=True) == pytest.approx(9.236)
    assert optimal_growth_tokens(10, tied=False) == pytest.approx(8.933)


def test_growth_relations():
    config = FAMILIES["untied_grow"].backbone(12)
    assert mean_passes(0.23) == pytest.approx(2.46)
    assert grown_compute_parameters(config, 0.0) == compute_parameters(config, 2)
    assert grown_compute_parameters(config, 1.0) == compute_parameters(config, 4)
    ratio = grown_compute_parameters(config, 0.3) / compute_parameters(config, 2)
    assert growth_expansion(config, 0.3) == pytest.approx(ratio, rel=1e-15)
    # at ρ* the grown run of TPP_Kρ* costs what TPP_K2 costs without growth
    fraction = optimal_growth_fraction(7, config)
    assert growth_expansion(config, fraction) * optimal_growth_tokens(7, tied=False) == pytest.approx(7, rel=1e-14)


@pytest.mark.parametrize(("tied", "slope"), [(True, 0.902), (False, 0.883)])
def test_growth_fraction_tends_to_its_limit(tied, slope):
    # Equal stages without vocabulary: E_4/E_2 = 6/4, the limiting prescription 2·(1/a - 1).
    config = BackboneConfig(
        width=4096, heads=32, prelude=50, core=50, coda=50, passes=2, tied=tied, stored_cores=1 if tied else 4,
        vocabulary=1,
    )  # fmt: skip
    assert optimal_growth_fraction(1e9, config) == pytest.approx(2 * (1 / slope - 1), rel=1e-4)
