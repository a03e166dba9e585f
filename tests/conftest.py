"""Fixtures for all tests."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads: tests share their cores with others

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of published measurements and vocabulary files beside the repository, or a skip."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        if os.environ.get("CI"):
            pytest.fail("needs ../shared, which CI has to provide")
        pytest.skip("needs ../shared (published measurements and vocabulary files), which is not here")
    return folder
