"""The truncation study's recipe: shapes, counts, HyperP, the command, and the way to module arguments and back."""

from __future__ import annotations

import json

import pytest

from looplit.accounting.flops import (
    applied_parameters,
    nonembedding_parameters,
    recurrent_parameters,
    stored_parameters,
)
from looplit.commands.recipe import config_of, parse_recipe, recipe_main, run_of_args
from looplit.errors import InputError
from looplit.planning.config_files import parse_value
from looplit.planning.plan import plan_config
from looplit.planning.run_config import Layout, config_dict
from looplit.recipes.hyperp import REFERENCE_TOKENS, transfer
from looplit.recipes.lookup import module_arguments, recipe_of
from looplit.recipes.run import run_of
from looplit.recipes.truncation_study import (
    SETTINGS,
    TOKENS,
    TRUNCATED_LOOP,
    WIDTHS,
    truncated_backbone,
    truncated_run,
    truncation_study,
)


def test_sizes_are_the_studys():
    """58M to 925M for its nominal 60M to 1B; one matrix of 2·width² for the boundary, which belongs to N_rec."""
    sizes = [nonembedding_parameters(truncated_backbone(width)) for width in WIDTHS]
    assert [round(size / 1e6) for size in sizes] == [58, 116, 231, 464, 925]
    for width in WIDTHS:
        config = truncated_backbone(width)
        blocks, gains = 12 * width**2, 2 * width
        assert nonembedding_parameters(config) == 8 * (blocks + gains) + 2 * width**2 + 3 * width
        assert recurrent_parameters(config) == 4 * (blocks + gains) + 2 * width**2 + width


def test_the_15_settings():
    assert len(SETTINGS) == 15
    assert all(truncated_run(*setting).backbone.trained_passes == setting[1] for setting in SETTINGS)


@pytest.mark.parametrize("setting", [(8, 2), (4, 4)])
def test_compute_of_the_measured_pair(setting):
    """2.416e19 at the smallest size, attention counted without causal halving: the number has four digits."""
    run = truncated_run(*setting, width=768, vocabulary=32_768)
    assert run.tokens == TOKENS == 16 * 2**30
    assert run.training_flops_full_attention == pytest.approx(2.416e19, abs=0.0005e19)
    assert run.training_flops < run.training_flops_full_attention


def test_by_hand_the_compute_is_that_of_its_parts():
    width, context, vocabulary = 768, 2048, 32_768
    weights = 4 * 12 * width**2 + 4 * (4 * 12 * width**2 + 2 * width**2) + vocabulary * width  # (8 + 2·2)/3 = 4
    attention = (4 + 4 * 4) * 12 * width * context
    assert (
        truncated_run(8, 2, vocabulary=vocabulary).training_flops_full_attention == (6 * weights + attention) * TOKENS
    )


def test_reference_tokens_are_ten_per_applied_parameter():
    looped = truncated_backbone(640, 4)
    plain = truncated_backbone(640, 1, split=(2, 16, 2))
    assert {"looped": 10 * applied_parameters(looped), "plain": 10 * applied_parameters(plain)} == REFERENCE_TOKENS


class TestTransfer:
    def test_at_the_reference_nothing_is_scaled(self):
        settings = transfer(640, 2**18, 1_016_083_200)
        rates = (settings.learning_rate, settings.embedding_lr, settings.head_lr, settings.gain_lr)
        assert rates == (0.014, 0.3, 0.004, 0.005)
        assert transfer(640, 2**18, 983_315_200, looped=False) == settings

    def test_exponents(self):
        at, wide = transfer(640, 2**18, 10**9), transfer(2560, 2**18, 10**9)
        assert wide.learning_rate == at.learning_rate  # no width factor
        assert wide.embedding_lr / at.embedding_lr == wide.head_lr / at.head_lr == wide.gain_lr / at.gain_lr == 0.5
        large = transfer(640, 2**19, 10**9)
        for name in ("learning_rate", "embedding_lr", "head_lr"):
            assert getattr(large, name) / getattr(at, name) == pytest.approx(2**0.558)
        assert large.gain_lr == at.gain_lr
        longer = transfer(640, 2**18, 10**10)
        assert longer.learning_rate / at.learning_rate == pytest.approx(10**-0.32)
        assert (longer.embedding_lr, longer.head_lr) == (at.embedding_lr, at.head_lr)

    def test_groups(self):
        groups = transfer(640, 2**18, 10**9).groups("muonh")
        assert {role: group.algorithm for role, group in groups.items()} == {
            "embedding": "adamw", "matrix": "muonh", "head": "adamw", "boundary": "muonh", "gain": "adamw"
        }  # fmt: skip
        assert {group.weight_decay for group in groups.values()} == {0.0}
        assert groups["boundary"].learning_rate == groups["matrix"].learning_rate

    def test_the_tokens_are_the_runs(self):
        recipe = truncation_study.resolve(TRUNCATED_LOOP, {"passes": 4, "width": 640, "heads": 10})
        assert recipe.settings(1000) == transfer(640, 2**18, 1000 * 2**18)
        one_pass = truncation_study.resolve(TRUNCATED_LOOP, {"passes": 1, "width": 640})
        assert one_pass.settings(1000) == transfer(640, 2**18, 1000 * 2**18, looped=False)


def test_one_pass_has_no_boundary():
    plain, looped = truncated_backbone(64, 1), truncated_backbone(64, 2)
    assert (plain.boundary, looped.boundary, looped.coda_boundary) == ("identity", "linear", "identity")
    assert stored_parameters(looped) - stored_parameters(plain) == 2 * 64**2


@pytest.mark.parametrize(
    "run",
    [
        *(truncated_run(*setting, width=width) for setting in SETTINGS[::4] for width in WIDTHS),
        truncated_run(4, 2, width=160, boundary="inject", mlp="swiglu", vocabulary=257, context=64, batch_tokens=4096),
        truncated_run(8, 1, betas=(0.9, 0.95), final_factor=0.0),
        truncated_run(2, width=128, heads=4, split=(1, 2, 1), tokens=2**24, gain_lr=0.1, eps=1e-8),
    ],
    ids=lambda run: f"{run.title} {run.backbone.width}",
)
def test_module_arguments_stand_for_the_run(run):
    recipe = recipe_of(run.class_path, module_arguments(run))
    rest = {name: getattr(run, name) for name in ("recurrence", "steps", "batch_tokens")}
    assert run_of(recipe, run.steps, **rest) == run


def test_module_arguments_say_only_what_the_setting_does_not():
    assert module_arguments(truncated_run(8, 2)) == {"passes": 8, "trained_passes": 2, "width": 768}


def test_json_says_both_counts(capsys):
    argv = ["truncated_loop", "--passes", "8", "--trained_passes", "2", "--vocabulary", "32768", "--json"]
    assert recipe_main(argv) == 0
    answer = json.loads(capsys.readouterr().out)
    run = truncated_run(8, 2, vocabulary=32_768)
    assert answer == json.loads(json.dumps(run.to_dict()))
    assert "depth" not in answer
    assert answer["training_flops_full_attention"] == run.training_flops_full_attention
    assert answer["hyperparameters"]["optimizer"] == "muonh"
    assert answer["gain_lr"] == run.groups["gain"].learning_rate


def test_the_card_names_what_matters(capsys):
    recipe_main(["truncated_loop", "--passes", "4"])
    card = capsys.readouterr().out
    for fact in ("truncated_loop (4, 4)", "boundary linear", "T + 2B = 4 + 2·4 = 12", "muonh", "decay to 0.1"):
        assert fact in card


def test_other_machines_keep_the_batch():
    argv = ["truncated_loop", "--passes", "2", "--devices", "1", "--micro_batch", "4"]
    config = parse_value(config_of(argv))
    assert config["trainer"]["accumulate_grad_batches"] == 32
    assert plan_config(config).run == run_of_args(parse_recipe(argv))
    config["trainer"]["accumulate_grad_batches"] = 16
    with pytest.raises(InputError, match="batch_tokens = 262144: an optimizer step takes 131072 tokens"):
        plan_config(config)


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ("truncated_loop", "required: --passes"),
        ("truncated_loop --passes 4 --trained_passes 5", "trained_passes = 5: the gradient goes through 1 to all 4"),
        ("truncated_loop --passes 4 --trained_passes 0", "trained_passes = 0"),
        ("truncated_loop 8 --passes 4", "unrecognized arguments: 8"),
        ("truncated_loop --passes 4 --boundary add", "boundary = 'add'"),
        ("truncated_loop --passes 4 --mlp relu", "mlp = 'relu'"),
        ("truncated_loop --passes 4 --set weight_decay=1", "set = 'weight_decay'"),
        ("truncated_loop --passes 4 --set gain_lr=-1", "gain_lr = -1"),
        ("truncated_loop --passes 4 --set betas=[0.9,1]", "betas = (0.9, 1)"),
        ("truncated_loop --passes 4 --set final_factor=2", "final_factor = 2"),
        ("truncated_loop --passes 4 --set learning_rate=abc", "learning_rate = 'abc': must be a finite number"),
        ("truncated_loop --passes 4 --set learning_rate=true", "learning_rate = True: must be a finite number"),
        ("truncated_loop --passes 4 --set eps=nan", "eps = 'nan': must be a finite number"),
        ("truncated_loop --passes 4 --set betas=0.9", "betas = 0.9: must be two numbers"),
        ("truncated_loop --passes 4 --set learning_rate", "set = 'learning_rate': must be NAME=VALUE"),
        ("loop_2 8 --exponent learning_rate=abc", "exponent = 'learning_rate=abc': must give a number"),
        ("truncated_loop --passes 4 --tokens 10", "tokens = 10: must be at least one batch"),
        ("truncated_loop --passes 4 --batch_tokens 1000", "batch_tokens = 1000"),
        ("loop_2 8 --boundary linear", "boundary = 'linear': the growth study's recipe has no settings"),
    ],
)
def test_wrong_input_gets_one_clear_line(argv, line):
    with pytest.raises(InputError) as error:
        recipe_main(argv.split())
    assert str(error.value).splitlines() == [str(error.value)]
    assert line in str(error.value)


def test_a_prelude_that_no_boundary_reads():
    """Plain DDP waits for gradients that it never gets, so the config takes the other; the plan has a note on it."""
    layout = Layout(devices=2)
    for boundary, strategy in (("identity", "ddp_find_unused_parameters_true"), ("linear", "ddp")):
        run = truncated_run(8, 2, boundary=boundary)
        config = config_dict(run, layout)
        assert config["trainer"]["strategy"] == strategy
        noted = any("prelude" in note for note in plan_config(config).notes)
        assert noted is (boundary == "identity")


def test_unknown_module_arguments_are_refused():
    with pytest.raises(InputError, match=r"model.init_args = 'depth'"):
        recipe_of("looplit.TruncatedLoop", {"passes": 2, "depth": 8})
    with pytest.raises(InputError, match="passes = None"):
        recipe_of("TruncatedLoop", {})
