"""Recipes: the published runs to the printed digits, the options of the ablations, budgets, and the command."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from looplit.accounting.flops import compute_parameters, flops_per_token, initial_parameters
from looplit.accounting.recurrence import Growth, RandomPasses, Recurrence, draw_passes, growth_step
from looplit.commands.recipe import recipe_main
from looplit.errors import InputError
from looplit.laws.results import PUBLISHED
from looplit.model.config import split_depth
from looplit.recipes.budgets import run_for_compute, run_for_parameters, run_for_tokens
from looplit.recipes.families import FAMILIES
from looplit.recipes.growth_study import Budget, data_constrained, matrix_learning_rate, recipe
from looplit.recipes.lookup import module_arguments, recipe_of
from looplit.recipes.run import backbone_settings, epoch_steps, run_of
from looplit.recipes.tuning import Tuning
from looplit.recipes.variants import deep_narrow, family_named, fixed_allocation, width_only

KEYS = {
    "family", "depth", "width", "heads", "split",
    "passes", "vocabulary", "context", "batch_tokens", "stored_parameters",
    "initial_parameters", "nonembedding_parameters", "recurrent_parameters", "executed_depth", "steps", "planned_steps",
    "tokens", "learning_rate", "embedding_lr", "head_lr", "hyperparameters",
    "flops_per_token", "training_flops",
}  # fmt: skip


# --- published runs


@pytest.mark.parametrize(
    ("name", "depth", "steps", "growth", "flops"),
    [
        ("vanilla", 8, 1962, None, 1.0557508e18),
        ("loop_grow", 8, 2563, 2101, 1.8708923e18),
        ("untied_grow", 26, 68699, 52898, 1.2252577e21),
        ("untied_2", 12, 6952, None, None),
    ],
)
def test_steps_growth_and_flops_of_published_runs(name, depth, steps, growth, flops):
    plan = recipe(name, depth).to_dict()
    assert plan["steps"] == steps
    assert plan.get("growth_step") == growth
    assert plan["tokens"] == steps * 524_288
    if flops:
        assert plan["training_flops"] == pytest.approx(flops, rel=5e-8)  # printed to 8 digits


@pytest.mark.parametrize(
    ("name", "depth", "rate", "digits"), [("untied_grow", 26, 0.00652527533, 1e-9), ("untied_2", 12, 0.0231578, 2e-6)]
)
def test_learning_rates_of_published_runs(name, depth, rate, digits):
    plan = recipe(name, depth).to_dict()
    assert plan["learning_rate"] == pytest.approx(rate, rel=digits)  # to the digits that are printed
    assert plan["embedding_lr"] == pytest.approx(0.16 * plan["learning_rate"], rel=1e-15)
    assert plan["head_lr"] == pytest.approx(0.16 * plan["learning_rate"], rel=1e-15)


def test_flops_of_every_published_rung():
    with PUBLISHED.open() as file:
        rungs = list(csv.DictReader(file))
    assert len(rungs) == 58
    for rung in rungs:
        run = recipe(rung["arm"], int(rung["depth"]))
        assert f"{run.training_flops:.6e}" == f"{float(rung['compute_flops']):.6e}", rung


def test_learning_rate_is_the_base_at_d8():
    for family in FAMILIES.values():
        assert matrix_learning_rate(family, family.backbone(8)) == family.hyperparameters.learning_rate
    assert FAMILIES["deep_vanilla_grow"].hyperparameters.learning_rate == 0.036


def test_growing_run_spends_its_reference_budget():
    # To leading order; the step count is rounded and g floored, each worth at most a step's larger cost.
    run = recipe("untied_grow", 12)
    spent = sum(
        steps * compute_parameters(run.backbone, passes) for passes, steps in run.recurrence.realised(run.steps)
    )
    reference = 8 * initial_parameters(run.backbone) * compute_parameters(run.backbone, 2) / run.batch_tokens
    assert abs(spent - reference) <= 1.5 * compute_parameters(run.backbone, 4)


def test_growth_fractions():
    untied = FAMILIES["untied_grow"]
    assert [untied.fraction(depth) for depth in (8, 26, 30, 24, 20, 4)] == [0.29, 0.23, 0.23, 0.23, 0.25, 0.4]
    assert untied.fraction(7) == 0.29  # d6 and d8 are equally near: the deeper
    assert [FAMILIES["loop_grow"].fraction(depth, "simple") for depth in (6, 18)] == [0.2, 0.2]
    assert untied.fraction(12, "simple") == 0.3
    assert FAMILIES["deep_vanilla_grow"].fraction(14) == 0.5
    assert FAMILIES["loop_2"].fraction(8) is None


def test_simple_mode_keeps_the_reference_of_the_family_without_growth():
    run, fixed = recipe("untied_grow", 12, mode="simple"), recipe("untied_2", 12)
    assert run.recurrence.growths[0].fraction == 0.3
    assert run.training_flops == pytest.approx(fixed.training_flops, rel=0.01)  # attention is not in the budget rule
    assert recipe("vanilla", 12, mode="simple") == recipe("vanilla", 12)
    assert recipe("deep_vanilla_grow", 8, mode="simple") == recipe("deep_vanilla_grow", 8)


@pytest.mark.parametrize("name", FAMILIES)
def test_recipe_is_complete_at_every_depth(name):
    for depth in [*range(4, 31, 2), 3, 5, 7, 9, 15, 29]:
        run = recipe(name, depth)
        plan = run.to_dict()
        grows = {"growth_step", "growth_fraction", "growth_rewarm_steps"} if run.recurrence.growths else set()
        settings = {*backbone_settings(run.backbone)} - {*plan["hyperparameters"], "trained_passes", "soft_cap"}
        assert set(plan) == KEYS | grows | settings
        assert plan["split"] == list(split_depth(depth))
        assert (plan["width"], plan["heads"]) == (128 * depth, depth)
        phases = len(run.recurrence.growths) + 1
        assert [len(plan[key]) for key in ("passes", "executed_depth", "flops_per_token")] == [phases] * 3
        json.dumps(plan)


# --- options


def test_exponents_and_the_constant_recipe():
    constant = Tuning(exponents={"learning_rate": 0.0})
    assert recipe("vanilla", 16, tuning=constant).hyperparameters == FAMILIES["vanilla"].hyperparameters
    ratio = initial_parameters(FAMILIES["vanilla"].backbone(8)) / initial_parameters(FAMILIES["vanilla"].backbone(16))
    scaled = recipe("vanilla", 16, tuning=Tuning(exponents={"weight_decay": 0.2, "output_multiplier": -0.1}))
    assert scaled.hyperparameters.weight_decay == pytest.approx(0.0707107 * ratio**0.2)
    assert scaled.backbone.output_multiplier == pytest.approx(0.5 * ratio**-0.1)
    assert scaled.hyperparameters.learning_rate == pytest.approx(0.04 * ratio**0.8)


def test_mup_output_multiplier_with_and_without_the_learning_rate_rule():
    both = recipe("vanilla", 16, tuning=Tuning(mup_output=True))
    alone = recipe("vanilla", 16, tuning=Tuning(mup_output=True, exponents={"learning_rate": 0.0}))
    assert both.backbone.output_multiplier == alone.backbone.output_multiplier == 0.25
    assert both.hyperparameters.learning_rate < alone.hyperparameters.learning_rate == 0.04


def test_another_familys_hyperparameters():
    run = recipe("operator_1", 8, tuning=Tuning(hyperparameters_of="vanilla"))
    assert run.hyperparameters.embedding_lr_multiplier == 0.4525483
    assert run.backbone.injection_scale == 1.0  # α was never tuned for Vanilla
    assert run.steps == recipe("operator_1", 8).steps


def test_overrides_win():
    run = recipe("vanilla", 12, tuning=Tuning(overrides={"warmdown_ratio": 1.0, "learning_rate": 0.01}))
    assert (run.hyperparameters.warmdown_ratio, run.hyperparameters.learning_rate) == (1.0, 0.01)


def test_adamw_leaves_embedding_and_head_where_they_were():
    muon, adamw = (recipe("untied_2", 12, tuning=Tuning(optimizer=name)).to_dict() for name in ("muon", "adamw"))
    assert adamw["learning_rate"] == pytest.approx(muon["learning_rate"] / 20)
    assert adamw["embedding_lr"] == pytest.approx(muon["embedding_lr"])
    assert adamw["head_lr"] == pytest.approx(muon["head_lr"])


def test_shapes():
    for name in ("untied_2", "deep_vanilla", "operator_1", "vanilla"):
        run = recipe(name, 14, **width_only(FAMILIES[name], 14))
        assert run.backbone.executed_depth() == 11
        assert run.backbone.width == 128 * 14
    narrow = recipe("operator_1", 14, **deep_narrow(14)).backbone
    assert (narrow.width, narrow.head_dim, narrow.stored_blocks) == (64 * 14, 128, 14)
    assert recipe("vanilla", 7, **deep_narrow(7)).backbone.head_dim == 64
    assert fixed_allocation(16, 1, 2) == {"prelude": 1, "core": 13, "coda": 2}


def test_staged_growth_and_other_targets():
    run = recipe("untied_2", 8, growth=[(4, 0.4), (6, 0.1)])
    plan = run.to_dict()
    assert plan["passes"] == [2, 4, 6]
    assert plan["growth_step"] == [growth_step(0.4, run.steps), growth_step(0.1, run.steps)]
    assert plan["growth_fraction"] == [0.4, 0.1]
    assert run.backbone.stored_cores == 6
    assert recipe("loop_2", 8, growth=[(3, 0.2)]).backbone.stored_cores == 1


def test_variants():
    three = recipe("untied_3", 10)
    assert three.backbone.stored_cores == 3
    assert three.hyperparameters.weight_decay == 0.0707107
    assert recipe("untied_3", 8).hyperparameters.learning_rate == 0.04  # d8 is the base of every variant
    plain = family_named("tied_vanilla_4")
    assert (plain.boundary, plain.passes, plain.tied) == ("identity", 4, True)
    assert plain.hyperparameters == FAMILIES["vanilla"].hyperparameters
    deep, untied = recipe("deep_vanilla", 8), recipe("untied_vanilla_2", 8)
    assert untied.backbone.stored_blocks == deep.backbone.stored_blocks


# --- data-constrained


def test_epochs_are_whole_batches():
    assert epoch_steps(100_000_000) == 190
    assert epoch_steps(250_000_000) == 476
    assert data_constrained("loop_3", 8).steps == 1900
    assert data_constrained("loop_3", 8, budget=Budget(pool_tokens=250_000_000, epochs=4)).steps == 4 * 476
    assert data_constrained("loop_3", 8, budget=Budget(tokens=10**9)).steps == 1907


def test_data_constrained_recipe_is_operator_1s_without_a_learning_rate_rule():
    for name, depth in (("operator_1", 18), ("loop_12", 12), ("untied_4", 10)):
        tuned = data_constrained(name, depth).hyperparameters
        assert (tuned.learning_rate, tuned.weight_decay) == (0.04, 0.8)
        assert tuned.embedding_lr_multiplier == 0.9050967
    assert data_constrained("tied_vanilla_20", 8).hyperparameters.output_multiplier == 0.5  # Vanilla's recipe
    assert data_constrained("tied_vanilla_20", 8).hyperparameters.weight_decay == 0.8


def test_weight_decay_modes():
    selected = [data_constrained("loop_2", d, weight_decay="selected").hyperparameters.weight_decay
                for d in (4, 6, 8, 10, 12, 14, 16, 18)]  # fmt: skip
    assert selected == [0.4, 0.4, 0.8, 0.8, 1.2, 1.2, 1.6, 1.6]
    assert data_constrained("loop_2", 8, weight_decay=1.2).hyperparameters.weight_decay == 1.2
    with pytest.raises(InputError, match="weight_decay = 'tuned'"):
        data_constrained("loop_2", 8, weight_decay="tuned")  # type: ignore[arg-type]


# --- budgets


@pytest.mark.parametrize("name", ["vanilla", "untied_grow", "loop_grow"])
@pytest.mark.parametrize("flops", [3e17, 1.2e19, 5e21])
def test_compute_budget_is_spent_to_the_last_step(name, flops):
    run = run_for_compute(name, flops)
    dearest = flops_per_token(run.backbone, run.recurrence.max_passes) * run.batch_tokens
    # one more step could also move the growth by one
    assert flops - 2 * dearest < run.training_flops <= flops
    own = recipe(name, run.depth).training_flops
    for other in (run.depth - 1, run.depth + 1):
        assert abs(own / flops - 1) < abs(recipe(name, other).training_flops / flops - 1) or own > flops


def test_compute_budget_of_a_rung_gives_the_rung():
    for depth in (8, 14, 20):
        rung = recipe("untied_grow", depth)
        assert run_for_compute("untied_grow", rung.training_flops) == rung


def test_token_and_parameter_budgets():
    run = run_for_tokens("vanilla", 10**9)
    assert (run.depth, run.steps) == (8, 1907)
    assert run_for_parameters("untied_grow", 830_000_000).depth == 11
    assert run_for_parameters("untied_grow", 7_424_049_152).depth == 26
    with pytest.raises(InputError, match="parameters = 1000"):
        run_for_parameters("vanilla", 1000)


# --- recurrence


def test_phases_and_realised_passes():
    recurrence = Recurrence(2, (Growth(4, 7), Growth(6, 9)))
    assert [(phase.first_step, phase.steps, phase.passes) for phase in recurrence.phases(10)] == [
        (0, 7, 2), (7, 2, 4), (9, 1, 6)
    ]  # fmt: skip
    assert recurrence.realised(10) == [(2, 7), (4, 2), (6, 1)]
    assert recurrence.realised(8) == [(2, 7), (4, 1)]  # a run that stops early
    with pytest.raises(InputError, match="step = 7"):
        Recurrence(2, (Growth(4, 7), Growth(6, 7)))


def test_drawn_passes_are_uniform_and_a_pure_function_of_seed_and_step():
    choices = (2, 3, 4, 5, 6)
    drawn = [draw_passes(1, step, choices) for step in range(20_000)]
    assert drawn[:8] == [3, 6, 6, 2, 4, 4, 3, 5]  # today's; a resumed run must meet them on any version
    assert drawn != [draw_passes(2, step, choices) for step in range(20_000)]
    # 4000 expected of each, standard deviation 57: five of them
    assert all(abs(count - 4000) < 285 for count in Counter(drawn).values())
    # successive steps are independent: 800 expected of each pair, standard deviation 28
    assert all(abs(count - 800) < 140 for count in Counter(pairwise(drawn)).values())


def test_random_recurrence_costs_what_was_drawn():
    run = recipe("loop_grow", 8, random_passes=RandomPasses((2, 3, 4, 5, 6), evaluate_at=4, seed=3))
    fixed = recipe("loop_grow", 8)
    g = fixed.recurrence.growths[0].step
    drawn = [draw_passes(3, step, (2, 3, 4, 5, 6)) for step in range(g, fixed.steps)]
    costs = [flops_per_token(fixed.backbone, passes) for passes in [2] * g + drawn]
    assert run.steps == fixed.steps
    assert run.training_flops == sum(costs) * run.batch_tokens
    assert run.expected_training_flops == pytest.approx(fixed.training_flops, rel=1e-12)  # mean of the draw is 4
    assert run.to_dict()["passes"] == [2, [2, 3, 4, 5, 6]]


# --- module arguments


@pytest.mark.parametrize(
    "run",
    [
        *(recipe(name, depth) for name in FAMILIES for depth in (3, 8, 26)),
        *(data_constrained(name, 10) for name in ("operator_1", "loop_12", "untied_3", "tied_vanilla_4", "vanilla")),
        recipe("untied_2", 8, growth=[(4, 0.4), (6, 0.1)]),
        recipe("deep_vanilla", 8, boundary="inject", coda_boundary="inject"),
        recipe("untied_2", 12, **width_only(FAMILIES["untied_2"], 12)),
        recipe("operator_1", 13, **deep_narrow(13)),
        recipe("operator_1", 12, tuning=Tuning("vanilla", {"weight_decay": 0.2}, True, "adamw")),
        recipe("loop_2", 9, vocabulary=257, context=256, initial_state="prelude", batch_tokens=4096),
    ],
    ids=lambda run: f"{run.family}-{run.depth}",
)
def test_module_arguments_stand_for_the_run(run):
    rest = {name: getattr(run, name) for name in ("recurrence", "steps", "batch_tokens", "pool_tokens")}
    assert run_of(recipe_of(run.class_path, module_arguments(run)), run.steps, **rest) == run


def test_module_arguments_say_only_what_the_depth_does_not():
    assert module_arguments(recipe("untied_grow", 26)) == {"depth": 26}
    assert module_arguments(recipe("loop_3", 8, initial_state="prelude")) == {
        "depth": 8, "passes": 3, "initial_state": "prelude"
    }  # fmt: skip


# --- command


def _card(capsys, *argv):
    assert recipe_main(list(argv)) == 0
    return capsys.readouterr().out


def test_card_names_what_matters(capsys):
    card = _card(capsys, "untied_grow", "26")
    for fact in ("68,699", "52,898", "7,424,049,152", "5,016,387,584", "35 → 53", "1.2252577e+21", "0.00652528"):
        assert fact in card


def test_json_equals_the_recipe(capsys):
    for argv, run in (
        ("untied_grow 26", recipe("untied_grow", 26)),
        ("loop_3 8 --data_constrained", data_constrained("loop_3", 8)),
        ("vanilla --flops 1e20", run_for_compute("vanilla", 1e20)),
        ("vanilla --tokens 1B", run_for_tokens("vanilla", 10**9)),
        ("untied_grow --parameters 1B", run_for_parameters("untied_grow", 10**9)),
        ("untied_grow 8 --fraction 0.3 --tpp 6", recipe("untied_grow", 8, mode="simple")),
        ("vanilla 12 --constant --set warmdown_ratio=1",
         recipe("vanilla", 12, tuning=Tuning(exponents={"learning_rate": 0}, overrides={"warmdown_ratio": 1}))),
        ("loop_2 8 --growth 3:0.2", recipe("loop_2", 8, growth=[(3, 0.2)])),
        ("operator_1 16 --shape 1/C/2", recipe("operator_1", 16, **fixed_allocation(16, 1, 2))),
    ):  # fmt: skip
        released = replace(run, backbone=replace(run.backbone, initial_state="prelude"))  # the command's default
        assert json.loads(_card(capsys, *argv.split(), "--json")) == json.loads(json.dumps(released.to_dict())), argv


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ("transformer 8", "family = 'transformer'"),
        ("loop_0 8", "family = 'loop_0'"),
        ("vanilla 2", "depth = 2"),
        ("vanilla eight", "argument DEPTH: 'eight' is not a whole number"),
        ("vanilla", "depth = None: say a depth"),
        ("untied_grow 8 --fraction 0", "fraction = 0.0"),
        ("untied_grow 8 --fraction 1", "fraction = 1.0"),
        ("vanilla 8 --fraction 0.3", "fraction = 0.3: is for a family that grows"),
        ("untied_2 8 --growth 4", "growth = '4': must be like 4:0.3"),
        ("untied_2 8 --growth 4:1.5", "fraction = 1.5"),
        ("untied_2 8 --growth 2:0.5", "passes = 2: growth must lead to more than 2"),
        ("vanilla 8 --tokens 1B --flops 1e18", "budget = 'tokens, flops'"),
        ("vanilla 8 --epochs 2", "epochs = 2: needs pool_tokens"),
        ("vanilla 8 --pool_tokens 1000 --epochs 2", "pool_tokens = 1000: must hold one batch"),
        ("vanilla 8 --tokens 10", "tokens = 10: pays for no optimizer step of 524,288 tokens"),
        ("vanilla --flops 1e5", "flops = 100000.0: pays for no optimizer step of 524,288 tokens"),
        ("loop_grow 8 --flops 1e5", "flops = 100000.0: pays for no optimizer step"),
        ("vanilla 8 --tpp 1e-9", "tokens_per_parameter = 1e-09: pays for no optimizer step"),
        ("vanilla --flops 1e20 --tokens 10B", "tokens = 10000000000: does not go with flops, which finds the depth"),
        ("vanilla --parameters 1B --tpp 10", "tokens_per_parameter = 10.0: does not go with parameters"),
        ("vanilla --flops -1", "--flops"),
        ("vanilla 8 --batch_tokens 1000 --yaml", "batch_tokens = 1000"),
        ("vanilla 8 --devices 3 --yaml", "batch_tokens = 524288: must be a multiple of devices"),
        ("vanilla 8 --micro_batch 7 --yaml", "batch_tokens = 524288: must be a multiple of devices"),
        ("vanilla 8 --mode fast", "mode = 'fast'"),
        ("vanilla 8 --set lr=1", "overrides = 'lr'"),
        ("vanilla 8 --set lr", "set = 'lr'"),
        ("vanilla 8 --exponent eps=1", "exponents = 'eps'"),
        ("vanilla 8 --optimizer sgd", "optimizer = 'sgd'"),
        ("vanilla 8 --weight_decay fixed", "weight_decay = 'fixed': needs --data_constrained"),
        ("loop_2 8 --data_constrained --weight_decay best", "weight_decay = 'best'"),
        ("loop_2 8 --data_constrained --set eps=1e-8", "set = ['eps=1e-8']: is not an option of the data-constrained"),
        ("loop_2 8 --random_passes 2,x", "'2,x' is not a list of whole numbers"),
        ("vanilla 8 --tokens many", "'many' is not a positive number"),
        ("vanilla 8 --shape wide", "shape = 'wide'"),
        ("untied_2 8 --random_passes 2,3,4", "passes = 4: an untied model can run at most its 2 stored cores"),
        ("vanilla 8 --nope", "recipe: unrecognized arguments: --nope"),
    ],
)
def test_wrong_input_gets_one_clear_line(argv, line):
    with pytest.raises(InputError) as error:
        recipe_main(argv.split())
    assert str(error.value).splitlines() == [str(error.value)]
    assert line in str(error.value)


def test_recipe_needs_no_torch():
    code = (
        "import sys; from looplit.commands.recipe import recipe_main; recipe_main(['untied_grow', '26', '--yaml']);"
        "assert not {'torch', 'lightning', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
