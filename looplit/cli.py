"""The training commands: LightningCLI with LoopLit's defaults. Parsing only; no logic of training here."""

from __future__ import annotations

import contextlib
import itertools
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from jsonargparse import lazy_instance
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException

import looplit.callbacks
import looplit.data.module
import looplit.modules
import looplit.strategies  # noqa: F401  imported so that their classes can be named without a path
from looplit.callbacks import CheckpointOnSignal, Dashboard, ModelGrowth, RunReport, TokenLossWriter
from looplit.checkpoints.addresses import is_address, require_scheme
from looplit.checkpoints.reading import WEIGHTS_ONLY, read_folder
from looplit.checkpoints.saving import DataOnlyIO, WholeFileIO
from looplit.commands.arguments import underscored
from looplit.errors import InputError, require
from looplit.modules import LoopedLM
from looplit.modules.checkpoint import read_checkpoint
from looplit.strategies import LoopLitFSDP, resolve_strategy, shards
from looplit.strategies.watchdog import end_with_agent

RUNS_FOLDER = "runs"

_UNION = "Does not validate against any of the Union subtypes"
_TYPE = re.compile(r"Expected a (<class '[^']*'>|typing\.\S.*)( or .*)?")
_NOISE = (
    ".*LeafSpec.* is deprecated.*",
    "Your `IterableDataset` has `__len__` defined.*",
    ".*does not have many workers.*",
    "The dirpath has changed from.*",
)


class LoopLitParser(LightningArgumentParser):
    """Says what is wrong in one line, without the usage, and takes no abbreviated options."""

    instantiators: list[tuple[Callable[..., Any], type, bool]] | None = None  # as jsonargparse takes them

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if self.exit_on_error:
            self.exit(2, f"looplit: error: {one_line(message)}\n")
        super().error(message, ex)

    def instantiate_classes(self, cfg: Any, **kwargs: Any) -> Any:
        return super().instantiate_classes(cfg, instantiators=self.instantiators, **kwargs)


def _on_meta(family: type[LoopedLM], *args: Any, **settings: Any) -> LoopedLM:
    with torch.device("meta"):
        return family(*args, **settings)


def one_line(message: str) -> str:
    """The informative line of an error of jsonargparse, which lists every type that a value might have had.

    >>> one_line("Parser key \\"a\\":\\n  Expected a <class 'int'>. Got value: x")
    "a: Expected a <class 'int'>. Got value: x"
    """
    head, _, tried = message.partition(_UNION)
    if tried:
        reason, value = _reason(tried)
        line = one_line(f"{head} {reason}")
        return line if "Got value" in line or not _TYPE.fullmatch(reason) else f"{line}. Got value: {value}"
    line = " ".join(message.split())
    line = re.sub(r'Parser key "([^"]+)":', r"\1:", line)
    line = re.sub(
        r"Problem with given class_path '([^']+)': Option '([^']+)' is not accepted", r"\1 has no option '\2'", line
    )
    line = re.sub(r"Expected a dot import path string: (\S+)", r"class_path = '\1': there is no such class", line)
    return line


def _reason(tried: str) -> tuple[str, str]:
    """What stands against a value, with all that is indented below it; and the value.

    Of the reasons, one per type that was tried, the first that says more than the type; else the types, None aside.
    """
    lines = tried.partition("Errors:\n")[2].splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    within = list(itertools.takewhile(lambda line: len(line) - len(line.lstrip()) >= indent, lines))
    starts = [n for n, line in enumerate(within) if line[indent:].startswith("- ")]
    reasons = ["\n".join(within[a:b])[indent + 2 :] for a, b in itertools.pairwise([*starts, len(within)])]
    types = [reason.removeprefix("Expected a ") for reason in reasons if _TYPE.fullmatch(reason)]
    expected = " or ".join(name for name in types if "NoneType" not in name)
    values = [line.partition("Given value: ")[2] for line in lines if "Given value: " in line]
    told = next((reason for reason in reasons if not _TYPE.fullmatch(reason)), f"Expected a {expected}")
    return told, values[-1] if values else ""


class LoopLitCLI(LightningCLI):
    """`fit`, `validate`, `test` and `predict` for any LightningModule, with LoopLit's callbacks and logger by default.

    A run's folder is runs/NAME/version_N, NAME the configuration file's; a second run gets the next N.
    `trainer.default_root_dir` stands in for `runs`.
    """

    def __init__(self, run_name: str, **settings: Any) -> None:
        self._run_name = run_name
        super().__init__(**settings)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        self.config = parser.parse_args(args)  # type: ignore[arg-type]

    def _parse_ckpt_path(self) -> None:
        """The configuration decides, not the checkpoint's hyperparameters: nothing given is silently overwritten."""

    def before_instantiate_classes(self) -> None:
        self._check_checkpoint(self._get(self.config, "ckpt_path"))
        trainer = self._get(self.config, "trainer")
        trainer.strategy = resolve_strategy(trainer.strategy)
        if shards(trainer.strategy):  # no process builds the whole model
            assert isinstance(self.parser, LoopLitParser)
            self.parser.instantiators = [(_on_meta, LoopedLM, True)]
        accumulation = trainer.accumulate_grad_batches
        require(accumulation >= 1, "trainer.accumulate_grad_batches", accumulation, "must be at least 1")
        if trainer.default_root_dir is None:
            if trainer.logger is False:
                trainer.default_root_dir = _next_folder(self._run_name)
        elif getattr(getattr(trainer.logger, "init_args", None), "save_dir", None) == RUNS_FOLDER:
            trainer.logger.init_args.save_dir = str(trainer.default_root_dir)

    def _check_checkpoint(self, path: str | None) -> None:
        """Before anything is built; what is at an address is read once, when the run begins with it."""
        if path is None:
            return
        given = self._get(self.config, "weights_only")
        require(given is not False, "weights_only", given, "a checkpoint is read as data alone")
        self.config[self.subcommand]["weights_only"] = True  # for what reads it in place of WholeFileIO
        if is_address(path):
            return require_scheme("ckpt_path", path)
        if path in ("hpc", "registry"):
            return
        rule = (
            "each run has a folder of its own, so say the file"
            if path in ("last", "best")
            else "there is no such checkpoint"
        )
        require(Path(path).exists(), "ckpt_path", str(path), rule)
        content = read_folder(path) if Path(path).is_dir() else read_checkpoint(path, "ckpt_path")
        require(self.subcommand != "fit" or "loops" in content, "ckpt_path", str(path), WEIGHTS_ONLY)

    def instantiate_classes(self) -> None:
        super().instantiate_classes()
        path = self._get(self.config, "ckpt_path")
        strategy = self.trainer.strategy
        reads = not is_address(path) or isinstance(strategy.checkpoint_io, DataOnlyIO)
        require(reads, "ckpt_path", path, "is not read by another checkpoint plugin; copy it to a disk first")
        # Lightning's own reader of folders, which it may find under "hpc", runs what is in them.
        hidden = isinstance(strategy, ModelParallelStrategy) and path == "hpc"
        sharded = path is not None and (Path(path).is_dir() or hidden)
        require(
            not sharded or isinstance(strategy, LoopLitFSDP), "ckpt_path", str(path),
            "a sharded checkpoint; take strategy looplit_fsdp, or make one file of it: looplit consolidate",
        )  # fmt: skip

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        given = self._get(self.config_init, "trainer.callbacks") or []
        given = given if isinstance(given, list) else [given]
        growths = [callback for callback in given if isinstance(callback, ModelGrowth)]
        require(
            len(growths) <= 1, "trainer.callbacks", len(growths), "give several growths to one ModelGrowth, as lists"
        )
        saves = self._get(self.config_init, "trainer.enable_checkpointing") is not False
        self.trainer_defaults["callbacks"] = [
            callback
            for callback in _default_callbacks()
            if not any(type(other) is type(callback) for other in given)
            and (saves or not isinstance(callback, ModelCheckpoint))
        ]
        trainer = super().instantiate_trainer(**kwargs)
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = WholeFileIO()
        return trainer


def _default_callbacks() -> list[Callback]:
    return [
        RunReport(),
        CheckpointOnSignal(),
        Dashboard(),
        TokenLossWriter(),
        ModelCheckpoint(filename="last", save_top_k=1, monitor=None, enable_version_counter=False),
    ]


def run(args: list[str]) -> None:
    """Runs one training command.

    Raises:
        InputError: A setting that a class refuses; the parser itself exits with code 2.
    """
    end_with_agent()
    for pattern in _NOISE:
        warnings.filterwarnings("ignore", pattern)
    args = underscored(args)
    name = _run_name(args)
    logger = lazy_instance(TensorBoardLogger, save_dir=RUNS_FOLDER, name=name, default_hp_metric=False)
    try:
        LoopLitCLI(
            name,
            parser_class=LoopLitParser,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            seed_everything_default=1,
            trainer_defaults={"logger": logger, "enable_model_summary": False},  # RunReport says more
            args=args,
        )
    except MisconfigurationException as error:
        raise InputError(" ".join(str(error).split())) from error
    except ValueError as error:
        if str(error).startswith(_UNION):  # what a constructor refused, wrapped by the parser
            raise InputError(one_line(str(error))) from error
        raise


def _next_folder(name: str) -> str:
    """A new version_N, made at once, for a run without a logger to number it."""
    for n in itertools.count():
        folder = Path(RUNS_FOLDER) / name / f"version_{n}"
        with contextlib.suppress(FileExistsError):  # another run may take the same number at the same moment
            folder.mkdir(parents=True)
            return str(folder)
    raise AssertionError("numbers do not end")


def _run_name(args: list[str]) -> str:
    """The stem of the first configuration file, else the command."""
    for at, word in enumerate(args):
        if word in ("--config", "-c") and at + 1 < len(args):
            return Path(args[at + 1]).stem
        if word.startswith("--config="):
            return Path(word.partition("=")[2]).stem
    return args[0]
