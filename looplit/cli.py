"""The training commands: LightningCLI with LoopLit's defaults. Parsing only; no logic of training here."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import lazy_instance
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger

import looplit.callbacks
import looplit.data.module
import looplit.modules  # noqa: F401  imported so that their classes can be named without a path
from looplit.callbacks import CheckpointOnSignal, Dashboard, RunReport, TokenLossWriter
from looplit.errors import InputError, require

RUNS_FOLDER = "runs"

_UNION = "Does not validate against any of the Union subtypes"
_NOISE = (
    ".*LeafSpec.* is deprecated.*",
    "Your `IterableDataset` has `__len__` defined.*",
    ".*does not have many workers.*",
)


class LoopLitParser(LightningArgumentParser):
    """Says what is wrong in one line, without the usage, and takes no abbreviated options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if self.exit_on_error:
            self.exit(2, f"looplit: error: {one_line(message)}\n")
        super().error(message, ex)


def one_line(message: str) -> str:
    """The informative line of an error of jsonargparse, which lists every type that a value might have had.

    >>> one_line("Parser key \\"a\\":\\n  Expected a <class 'int'>. Got value: x")
    "a: Expected a <class 'int'>. Got value: x"
    """
    head, _, errors = message.partition(_UNION)
    if errors:
        first, *_ = re.split(r"\n\s*- ", errors.split("Errors:", 1)[-1].strip().removeprefix("- "))
        return one_line(f"{head} {re.split(r'Given value type:', first)[0]}")
    line = " ".join(message.split())
    line = re.sub(r'Parser key "([^"]+)":', r"\1:", line)
    line = re.sub(
        r"Problem with given class_path '([^']+)': Option '([^']+)' is not accepted", r"\1 has no option '\2'", line
    )
    line = re.sub(r"Expected a dot import path string: (\S+)", r"class_path = '\1': there is no such class", line)
    return line


class LoopLitCLI(LightningCLI):
    """`fit`, `validate`, `test` and `predict` for any LightningModule, with LoopLit's callbacks and logger by default.

    A run's folder is runs/NAME/version_N, NAME the configuration file's; a second run gets the next N.
    """

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        self.config = parser.parse_args(args)  # type: ignore[arg-type]

    def _parse_ckpt_path(self) -> None:
        """The configuration decides, not the checkpoint's hyperparameters: nothing given is silently overwritten."""

    def before_instantiate_classes(self) -> None:
        path = self._get(self.config, "ckpt_path")
        named = path is None or path in ("last", "best", "hpc", "registry") or "://" in str(path)
        require(named or Path(path).exists(), "ckpt_path", str(path), "there is no such checkpoint")

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        given = self._get(self.config_init, "trainer.callbacks") or []
        given = given if isinstance(given, list) else [given]
        self.trainer_defaults["callbacks"] = [
            callback for callback in _default_callbacks() if not any(type(other) is type(callback) for other in given)
        ]
        return super().instantiate_trainer(**kwargs)


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
    for pattern in _NOISE:
        warnings.filterwarnings("ignore", pattern)
    logger = lazy_instance(TensorBoardLogger, save_dir=RUNS_FOLDER, name=_run_name(args), default_hp_metric=False)
    try:
        LoopLitCLI(
            parser_class=LoopLitParser,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            seed_everything_default=1,
            trainer_defaults={"logger": logger, "enable_model_summary": False},  # RunReport says more
            args=args,
        )
    except ValueError as error:
        if str(error).startswith(_UNION):  # what a constructor refused, wrapped by the parser
            raise InputError(one_line(str(error))) from error
        raise


def _run_name(args: list[str]) -> str:
    """The stem of the first configuration file, else the command."""
    for at, word in enumerate(args):
        if word in ("--config", "-c") and at + 1 < len(args):
            return Path(args[at + 1]).stem
        if word.startswith("--config="):
            return Path(word.partition("=")[2]).stem
    return args[0]
