"""The data that a finished run was validated on, found from its checkpoint."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, cast

import yaml
from lightning import LightningDataModule

import looplit.data
from looplit.data import TokenData
from looplit.data.corpus import MANIFEST
from looplit.data.remote import is_remote
from looplit.errors import InputError, require
from looplit.eval.core.evaluation import TOKENIZERS
from looplit.eval.sample import TokenSample
from looplit.model.config import BackboneConfig

CONFIG = "config.yaml"  # what a run started from the command line leaves in its folder


def validation_sample(
    checkpoint: str | Path,
    folder: str | None,
    config: BackboneConfig,
    tokens: int,
    batch_size: int | None = None,
) -> TokenSample:
    """The first validation tokens for a checkpoint.

    Args:
        checkpoint: Of a run started from the command line, unless `folder` is given.
        folder: A prepared corpus; default the data of the checkpoint's run.
        config: Of the model. If `folder` is given, the corpus must have windows of its context, and ids of its
            tokenizer where that is known from the vocabulary.
        tokens: Most tokens.
        batch_size: Rows per batch; default the data's.

    Raises:
        InputError: No such data, or none to be found.
    """
    if folder is not None and not is_remote(folder):
        prepared = (Path(folder).expanduser() / MANIFEST).is_file()
        require(
            prepared, "folder", folder, f"has no {MANIFEST}, so it is not a prepared corpus: looplit prepare makes one"
        )
    module = run_data(checkpoint) if folder is None else TokenData(folder, context=config.context)
    if batch_size is not None:
        require(batch_size >= 1, "batch_size", batch_size, "must be at least 1")
        module.batch_size = batch_size  # type: ignore[attr-defined]
    module.prepare_data()
    module.setup("validate")
    if isinstance(module, TokenData) and folder is not None and config.vocabulary in TOKENIZERS:
        rule = f"holds ids of a tokenizer with {module.vocabulary}; the model's, {TOKENIZERS[config.vocabulary]}, has "
        require(module.vocabulary == config.vocabulary, "folder", folder, f"{rule}{config.vocabulary}")
    return TokenSample(tokens).fill(module.val_dataloader())


def run_data(checkpoint: str | Path) -> LightningDataModule:
    """The data module of the run that wrote a checkpoint, as its `config.yaml` says.

    Raises:
        InputError: There is no such file near the checkpoint, or its data cannot be built.
    """
    folders = Path(checkpoint).resolve().parents
    path = next((folder / CONFIG for folder in folders[:2] if (folder / CONFIG).is_file()), None)
    if path is None:
        raise InputError(f"folder = None: there is no {CONFIG} of its run near {checkpoint}; name a prepared corpus")
    try:
        given: Any = yaml.safe_load(path.read_text(encoding="utf-8"))["data"]
        class_path, arguments = given["class_path"], given.get("init_args") or {}
    except (yaml.YAMLError, KeyError, TypeError):
        raise InputError(f"folder = None: {path} does not say the data of a run; name a prepared corpus") from None
    try:
        package, _, name = str(class_path).rpartition(".")
        kind = getattr(importlib.import_module(package) if package else looplit.data, name)
        # Before it is called: whoever hands on a checkpoint may have written the file.
        ours = isinstance(kind, type) and issubclass(kind, LightningDataModule)
        require(ours, "data", class_path, f"in {path}: no data module")
        return cast(LightningDataModule, kind(**arguments))
    except (ImportError, AttributeError, TypeError) as error:
        raise InputError(f"data = {class_path!r} in {path}: cannot be built ({error})") from None
