"""Fixtures for all tests."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads: tests share their cores with others

import pytest
from helpers.core_fixtures import backbone, bundle_folder, gpt2_files, reference  # noqa: F401
from helpers.corpora import library_texts, memory_source, numbered, numbered_once, numbers, parquet_file  # noqa: F401
from helpers.hub_server import hub  # noqa: F401
from helpers.loop_runs import make_runs  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTED = ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE")


SLOW = (
    "test_cli", "test_fsdp", "test_command_line", "test_epochs", "test_resume", "test_own_study", "test_gpu_check",
    "test_own_family", "test_configs", "test_two_processes", "test_window", "test_own_parts", "test_loops",
    "test_preparation", "test_processes", "test_dashboard", "test_notebook", "test_fit", "test_effective_depth",
    "test_core", "test_event_files", "test_choice", "test_stopped_preparation", "test_distributed_muon",
    "test_lens_notebook", "test_payloads", "test_docs", "test_launch", "test_data_module", "test_resumable_loader",
)  # fmt: skip
"""Files that start processes, train runs or fit many laws, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests of slow files and lets them start first, so that no core is left with one of them at the end."""
    place = {name: at for at, name in enumerate(SLOW)}
    for item in items:
        if item.path.stem in place:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: place.get(item.path.stem, len(SLOW)))


@contextmanager
def no_trace() -> Iterator[None]:
    """Trainers and notebooks leave behind a process group, its address for every child process, and a log level."""
    log, before = logging.getLogger("lightning.pytorch"), {name: os.environ.get(name) for name in DISTRIBUTED}
    level = log.level
    yield
    log.setLevel(level)
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
    if "torch.distributed" in sys.modules and sys.modules["torch.distributed"].is_initialized():
        sys.modules["torch.distributed"].destroy_process_group()


@pytest.fixture(scope="module", autouse=True)
def _module_leaves_no_trace() -> Iterator[None]:
    """What a module's own fixtures train leaves nothing to the next module."""
    with no_trace():
        yield


@pytest.fixture(autouse=True)
def _leaves_no_trace() -> Iterator[None]:
    with no_trace():
        yield


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def load_script() -> Callable[[Path], ModuleType]:
    """Imports a file that belongs to no package: a benchmark, or what a test runs in processes of its own."""

    def load(path: Path) -> ModuleType:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of published measurements and vocabulary files beside the repository, or a skip."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        if os.environ.get("CI"):
            pytest.fail("needs ../shared, which CI has to provide")
        pytest.skip("needs ../shared (published measurements and vocabulary files), which is not here")
    return folder
