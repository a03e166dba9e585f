"""Plans: what a config will do, against recipes, exact sums, and runs that really take place."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from looplit.accounting.flops import flops_per_token, initial_parameters, stored_parameters
from looplit.accounting.recurrence import RandomPasses
from looplit.commands.plan import plan_main
from looplit.errors import InputError
from looplit.planning.config_files import parse_value, read_configs
from looplit.planning.plan import plan_config
from looplit.planning.resources import Machine, activation_bytes, memory_per_device, training_seconds
from looplit.planning.run_config import Layout, accumulation, config_dict, place
from looplit.planning.strategy import SHARDED_SETTINGS
from looplit.recipes.families import FAMILIES
from looplit.recipes.growth_study import data_constrained, recipe
from looplit.recipes.run import Run


def _config(**changes):
    """A small growing run on one device."""
    model = {"depth": 4, "width": 64, "heads": 2, "vocabulary": 257}
    trainer = {"max_steps": 10, "devices": 1, "accumulate_grad_batches": 2}
    growth = {"class_path": "ModelGrowth", "init_args": {"passes": 4, "fraction": 0.3}}
    config = {
        "model": {"class_path": "LoopGrow", "init_args": model},
        "data": {"class_path": "StandardLibraryText", "init_args": {"context": 32, "batch_size": 3}},
        "trainer": {**trainer, "callbacks": [growth]},
    }
    for key, value in changes.items():
        section, name = key.split("__")
        target = config[section]
        (target if section == "trainer" else target["init_args"])[name] = value
    return config


def _sharded(**settings):
    return {"trainer__strategy": {"class_path": "looplit.strategies.LoopLitFSDP", "init_args": settings}}


# --- plans equal recipes


@pytest.mark.parametrize(
    "run",
    [
        *(recipe(name, 6) for name in FAMILIES),
        recipe("untied_grow", 26),
        recipe("loop_grow", 8, random_passes=RandomPasses((2, 3, 4, 5, 6), 4, 1)),
        recipe("untied_2", 8, growth=[(3, 0.3)]),
        data_constrained("loop_6", 8),
    ],
    ids=lambda run: f"{run.family}-{run.depth}",
)
def test_plan_of_a_recipes_config_is_the_recipe(run: Run):
    plan = plan_config(config_dict(run, Layout()))
    assert plan.run == run
    assert plan.run.to_dict() == run.to_dict()


def test_hand_count_of_a_small_run():
    plan = plan_config(_config())
    answer = plan.to_dict()
    assert answer["batch_tokens"] == 2 * 3 * 32
    assert answer["growth_step"] == 7
    cost = [flops_per_token(plan.run.backbone, passes, 32) for passes in (2, 4)]
    assert answer["phase_flops"] == [7 * 192 * cost[0], 3 * 192 * cost[1]]
    assert answer["training_flops"] == sum(answer["phase_flops"])


def test_batch_follows_devices():
    config = _config(trainer__devices=2)
    config["trainer"]["num_nodes"] = 3
    assert plan_config(config).run.batch_tokens == 6 * 192
    assert plan_config(config, devices=1).run.batch_tokens == 192
    assert any("192 tokens" in note for note in plan_config(config, devices=1).notes)


def test_devices_may_be_listed():
    for listed in ("0,1,3", [0, 1, 3], "3", 3):
        assert plan_config(_config(trainer__devices=listed)).machine.devices == 3
    with pytest.raises(InputError, match="devices = 0: must be at least 1"):
        plan_config(_config(), devices=0)


def test_the_plan_knows_the_settings_of_the_sharded_strategy():
    from looplit.strategies import LoopLitFSDP

    parameters = inspect.signature(LoopLitFSDP).parameters
    assert list(SHARDED_SETTINGS) == list(parameters)
    plan_config(_config(**_sharded(**{name: parameter.default for name, parameter in parameters.items()})))


def test_growth_is_a_share_of_the_planned_steps():
    early = plan_config(_config(model__steps=20))
    assert early.run.recurrence.growths == ()  # step 14 is planned, the Trainer stops at 10
    assert plan_config(_config(model__steps=20, trainer__max_steps=15)).to_dict()["passes"] == [2, 4]


def test_growth_without_arguments_is_the_familys():
    config = _config()
    config["trainer"]["callbacks"] = [{"class_path": "looplit.callbacks.ModelGrowth"}]
    growth = plan_config(config).run.recurrence.growths[0]
    assert (growth.passes, growth.fraction) == (4, 0.25)  # that of d6, the published depth nearest to 4


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model__dept": 8}, "model.init_args = 'dept'"),
        ({"model__depth": None}, "depth = None"),
        ({"model__heads": 3}, "heads = 3: must divide the width 64"),
        ({"trainer__max_steps": None}, "trainer.max_steps = None"),
        ({"trainer__precision": "8-bit"}, "trainer.precision = '8-bit'"),
        ({"trainer__devices": 0}, "trainer.devices = 0: must be a number from 1 up"),
        ({"trainer__devices": "0,x"}, "trainer.devices = '0,x'"),
        ({"trainer__num_nodes": 0}, "trainer.num_nodes = 0"),
        ({"trainer__accumulate_grad_batches": 0}, "trainer.accumulate_grad_batches = 0: must be a whole number"),
        ({"trainer__strategy": "FSDPStrategy"}, "trainer.strategy = 'FSDPStrategy': FSDP1 flattens parameters"),
        ({"trainer__strategy": "looplit_fsdpp"}, "trainer.strategy = 'looplit_fsdpp': there is no such strategy"),
        (_sharded(save_distributed_checkpoint="maybe"), "save_distributed_checkpoint = 'maybe': must be bool"),
        (_sharded(replica=2), "trainer.strategy = 'replica': LoopLitFSDP has no such setting"),
        (_sharded(timeout_minutes=0), "timeout_minutes = 0: must be above 0"),
        (_sharded(replicas=0), "replicas = 0: must divide"),
        (_sharded(activation_checkpointing="foo"), "activation_checkpointing = 'foo': must be block or pass"),
        ({"trainer__callbacks": []}, "loop_grow trains with growth: add ModelGrowth"),
        ({"data__pool_tokens": 100}, "pool_tokens = 100: must hold one batch"),
        ({"trainer__callbacks": [{"class_path": "ModelGrowth", "init_args": {"passes": 4, "step": 10}}]}, "step = 10"),
        ({"trainer__callbacks": [{"class_path": "ModelGrowth", "init_args": {"passes": 4}}]}, "passes = 4"),
    ],
)
def test_wrong_configs_get_one_clear_line(changes, line):
    with pytest.raises(InputError) as error:
        plan_config(_config(**changes))
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_growth_of_an_untied_model_stays_within_its_cores():
    config = config_dict(recipe("untied_grow", 8), Layout())
    config["trainer"]["callbacks"][0]["init_args"]["passes"] = 8
    with pytest.raises(InputError, match="passes = 8: the model stores 4 cores"):
        plan_config(config)


# --- config files


def test_configs_merge_and_overrides_win(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(_config()))
    (tmp_path / "b.yaml").write_text("model: {init_args: {depth: 5, learning_rate: 3e-4}}\ntrainer: {max_steps: 20}\n")
    overrides = ["--model.heads", "4", "--trainer.max_steps=30", "--data", "FineWeb", "--data.batch_size", "7"]
    config = read_configs([tmp_path / "a.yaml", tmp_path / "b.yaml"], overrides)
    assert config["model"]["init_args"] == {
        "depth": 5, "width": 64, "heads": 4, "vocabulary": 257, "learning_rate": 0.0003
    }  # fmt: skip
    assert config["trainer"]["max_steps"] == 30
    assert config["data"] == {"class_path": "FineWeb", "init_args": {"context": 32, "batch_size": 7}}


@pytest.mark.parametrize(
    ("text", "value"),
    [("3e-4", 3e-4), ("1e9", 1e9), ("-1.5E+3", -1500.0), ("8", 8), ("0.5", 0.5), ("gpt2", "gpt2"), ("e5", "e5")],
)
def test_numbers_read_as_numbers(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@pytest.mark.parametrize(
    ("text", "overrides", "line"),
    [
        ("modle: {}", [], "'modle': unknown section"),
        ("- a", [], "must hold sections"),
        ("a: [", [], "no YAML"),
        ("trainer: {}", ["--trainer.max_steps"], "overrides are pairs"),
        ("trainer: {}", ["trainer.max_steps", "3"], "overrides are pairs"),
        ("trainer: {max_steps: 3}", ["--trainer.max_steps.deep", "3"], "max_steps has no entries"),
    ],
)
def test_wrong_files_get_one_clear_line(tmp_path: Path, text, overrides, line):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(InputError) as error:
        read_configs([tmp_path / "c.yaml"], overrides)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_file_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"nowhere\.yaml.*No such file"):
        read_configs([tmp_path / "nowhere.yaml"])


# --- batch, memory, time


def test_accumulation_divides_or_says_why():
    assert accumulation(524_288, 8, 32, 2048) == 1
    with pytest.raises(InputError, match=r"3 · 4 · 2048 = 24576"):
        accumulation(524_288, 3, 4, 2048)


def test_placed_runs_keep_the_batch_and_fit():
    for name, depth, nodes in (("vanilla", 6, 1), ("untied_grow", 18, 1), ("untied_grow", 26, 2)):
        run, layout = recipe(name, depth), Layout(nodes=nodes)
        machine = place(run, layout)
        steps = accumulation(524_288, machine.devices, machine.micro_batch, 2048)
        assert machine.devices * machine.micro_batch * steps * 2048 == 524_288
        assert memory_per_device(run, machine)["total"] < 80e9
        assert machine.sharded == (depth == 26)


def test_the_large_run_fits_two_nodes_before_and_after_growth(root: Path):
    """A copy per node, 2 windows at a time: gathered within a node, gradients summed there, exchanged once a step."""
    plan = plan_config(read_configs([root / "configs" / "untied_grow_d26.yaml"]))
    machine = plan.machine
    assert (machine.devices, machine.shards, machine.micro_batch, plan.accumulation) == (16, 8, 2, 8)
    assert not machine.whole_gradients
    before, after = plan.to_dict()["phase_memory_bytes"]
    assert before < after == plan.to_dict()["memory_bytes"]["total"] < 60e9
    twice = replace(machine, micro_batch=4)
    assert memory_per_device(plan.run, twice)["total"] > 80e9
    again = replace(machine, micro_batch=16, activation_checkpointing="block")
    assert memory_per_device(plan.run, again)["total"] < 60e9


def test_recomputation_is_a_last_resort():
    run = recipe("untied_grow", 40)
    machine = place(run, Layout())
    assert machine.activation_checkpointing == "block"
    kept = replace(machine, micro_batch=1, activation_checkpointing=None)
    assert memory_per_device(run, kept)["total"] > 60e9
    strategy = config_dict(run, Layout())["trainer"]["strategy"]["init_args"]
    assert strategy == {"activation_checkpointing": "block", "reduce_every_micro_batch": True}


def test_a_config_says_how_it_shards():
    config = config_dict(recipe("untied_grow", 26), Layout(nodes=2))
    settings = {"replicas": 4, "activation_checkpointing": True}
    config["trainer"]["strategy"] = {"class_path": "looplit.strategies.LoopLitFSDP", "init_args": settings}
    plan = plan_config(config)
    assert (plan.machine.shards, plan.machine.activation_checkpointing) == (4, "block")
    assert plan.machine.whole_gradients
    plain = replace(plan, machine=replace(plan.machine, activation_checkpointing=None)).to_dict()
    assert plan.to_dict()["expected_train_seconds"] == pytest.approx(4 / 3 * plain["expected_train_seconds"])
    with pytest.raises(InputError, match="replicas = 3: must divide the 16 devices"):
        replace(plan.machine, replicas=3)


def test_what_cannot_fit_is_refused():
    with pytest.raises(InputError, match="one sequence does not fit"):
        place(recipe("untied_grow", 60), Layout())


def test_state_memory_is_an_exact_sum():
    run = recipe("untied_grow", 8)
    stored, vocabulary = stored_parameters(run.backbone), 2 * 50304 * 1024
    memory = memory_per_device(run, Machine(8, 4))
    assert memory["parameters"] == memory["gradients"] == 4 * stored
    assert memory["optimizer_state"] == 4 * (stored - vocabulary) + 8 * vocabulary
    sharded = memory_per_device(run, Machine(8, 4, sharded=True))
    assert sharded["parameters"] * 8 == memory["parameters"]
    assert sharded["activations"] == memory["activations"]
    assert memory["total"] == sum(size for name, size in memory.items() if name != "total")


def test_dormant_cores_have_no_gradient():
    run = recipe("untied_2", 8, stored_cores=4)
    memory = memory_per_device(run, Machine())
    assert memory["gradients"] == 4 * initial_parameters(run.backbone) < memory["parameters"]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("name", ["vanilla", "untied_2"])
def test_activation_estimate_against_saved_tensors(name, precision):
    pytest.importorskip("torch")
    from looplit.model.backbone import Backbone

    config = FAMILIES[name].backbone(4, vocabulary=257, context=256)
    sizes = saved_tensors(Backbone(config), precision)
    run = recipe(name, 4, vocabulary=257, context=256)
    memory = memory_per_device(run, Machine(1, 4, precision=precision))
    chunk = 2 * 4 * 1024 * 257  # freed when the loss is formed, so not among the saved tensors
    estimate = memory["activations"] + memory["working_weights"] - chunk
    # The estimate leaves out norms' statistics, boundaries and the loss: a few percent.
    assert estimate == pytest.approx(sizes, rel=0.08)
    assert memory["activations"] == activation_bytes(config, config.passes, 4, precision)


@pytest.mark.parametrize("unit", ["block", "pass"])
def test_checkpointed_activations_against_saved_tensors(unit):
    """The forward saves what units read; the one unit that runs again is counted beside it."""
    pytest.importorskip("torch")
    from looplit.model.backbone import Backbone

    config = FAMILIES["untied_2"].backbone(7, vocabulary=257, context=256)
    model = Backbone(config)
    model.activation_checkpointing = unit
    kept, block = activation_bytes(config, 2, 4, "32-true"), config.executed_depth(2)
    one = (kept - (chunk := 2 * 4 * 1024 * 257)) / block * (1 if unit == "block" else 3)
    states = activation_bytes(config, 2, 4, "32-true", unit) - one - chunk
    # Beside the states: the norm after the embedding, the boundaries' norms, and the loss with its gradient.
    beside = 4 * 1024 * 4 * config.width
    assert states <= saved_tensors(model, "32-true") <= states + 2 * beside
    assert states + one < kept / 2


def saved_tensors(model, precision):
    """Bytes that a forward of four sequences keeps for the backward pass, weights aside."""
    import torch

    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    saved = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage  # kept alive, so that no address is used twice
        return tensor

    tokens_BT = torch.randint(0, 257, (4, 256))
    mixed = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), mixed:
        model(tokens_BT, tokens_BT)
    return sum(storage.nbytes() for storage in saved.values())


def test_time_at_the_studys_yardstick():
    # Untied-2 d8 on 1B tokens took 6.54 minutes on eight H100: MFU 0.42
    flops = flops_per_token(recipe("untied_2", 8).backbone) * 10**9
    assert training_seconds(flops, 8, 989e12, 0.42) / 60 == pytest.approx(6.54, rel=0.02)
    with pytest.raises(InputError, match="mfu"):
        training_seconds(flops, 8, 989e12, 1.5)


# --- a run that takes place


@pytest.mark.parametrize("name", ["LoopGrow", "UntiedGrow"])
def test_logged_flops_equal_the_plan_across_growth(name, tmp_path: Path):
    torch = pytest.importorskip("torch")
    import lightning as L

    import looplit.modules
    from looplit.callbacks import ModelGrowth

    config = _config()
    config["model"]["class_path"] = name
    plan = plan_config(config)
    model = getattr(looplit.modules, name)(**config["model"]["init_args"], context=32)
    windows = torch.randint(0, 257, (plan.run.steps * 2 * 3, 33))
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_steps=plan.run.steps, accumulate_grad_batches=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path, callbacks=[ModelGrowth(**config["trainer"]["callbacks"][0]["init_args"])],
    )  # fmt: skip
    trainer.fit(model, torch.utils.data.DataLoader(windows, batch_size=3))
    assert model.meter.flops == plan.run.training_flops
    assert model.meter.tokens == plan.run.tokens


# --- command


def test_plan_command_prints_card_and_json(tmp_path: Path, capsys):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config_dict(recipe("untied_grow", 26), Layout(nodes=2))))
    assert plan_main(["--config", str(tmp_path / "run.yaml")]) == 0
    card = capsys.readouterr().out
    for fact in ("68,699", "52,898", "1.2252577e+21", "memory per device", "16 × h100", "2 windows × 8"):
        assert fact in card
    assert "does not fit" not in card
    assert plan_main(["--config", str(tmp_path / "run.yaml"), "--data.batch_size", "4", "--device", "a100"]) == 0
    assert "does not fit the memory of a100" in capsys.readouterr().out
    assert plan_main(["--config", str(tmp_path / "run.yaml"), "--trainer.max_steps", "100", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["steps"], answer["growth_step"], answer["device_count"]) == (100, 77, 16)
    assert answer["training_flops"] == sum(answer["phase_flops"])


def test_plan_needs_no_torch(tmp_path: Path):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(_config()))
    code = (
        "import sys; from looplit.commands.plan import plan_main; plan_main(['--config', sys.argv[1]]);"
        "assert not {'torch', 'lightning', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "run.yaml"], check=True, capture_output=True)
