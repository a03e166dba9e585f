"""A bundle with the 22 labels, a tiny model that has opinions, and what the slow scorer makes of both."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.core_bundle import CONTEXT, made_tasks, make_model, write_bundle
from helpers.core_reference import slow_core
from looplit.data.tokenizer import load_tokenizer
from looplit.model import Backbone


@pytest.fixture(scope="session")
def bundle_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with the 22 labels."""
    return write_bundle(tmp_path_factory.mktemp("bundle") / "eval_bundle", made_tasks())


@pytest.fixture(scope="session")
def backbone() -> Backbone:
    """The tiny model, for bytes."""
    return make_model()


@pytest.fixture(scope="session")
def reference(bundle_folder: Path, backbone: Backbone) -> dict[str, Any]:
    """What the slow scorer makes of the bundle and the model."""
    with torch.no_grad():
        return slow_core(bundle_folder, backbone, load_tokenizer("bytes"), context=CONTEXT)


@pytest.fixture
def gpt2_files(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets tiktoken find the vocabulary of GPT-2."""
    monkeypatch.setitem(os.environ, "TIKTOKEN_CACHE_DIR", str(shared / "tiktoken_cache"))
