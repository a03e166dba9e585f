"""The package as a whole: what is shipped, what importing costs, and that the names hold together."""

from __future__ import annotations

import builtins
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import looplit


def python(code: str, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=cwd, timeout=120
    )
    return done.stdout


def test_the_packages_of_pyproject_are_the_folders_with_an_init(root: Path) -> None:
    listed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        ".".join(init.parent.relative_to(root).parts)
        for init in (root / "looplit").rglob("__init__.py")
        if "callbacks" not in init.parts
    }
    found |= {
        "looplit." + ".".join(init.parent.relative_to(root).parts) for init in (root / "callbacks").rglob("__init__.py")
    }
    assert sorted(listed) == sorted(found)


def test_what_is_no_python_ships_too(root: Path) -> None:
    """In a wheel: stubs, the marker of typed packages and the published ladders."""
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["looplit"]
    package = root / "looplit"
    shipped = {path for pattern in patterns for path in package.glob(pattern)}
    found = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert found == shipped
    assert {"py.typed", "fineweb_ladders.csv"} <= {path.name for path in found}


def test_the_citation_is_of_this_version(root: Path) -> None:
    citation = yaml.safe_load((root / "CITATION.cff").read_text())
    assert citation["version"] == looplit.__version__
    assert citation.keys() >= {"cff-version", "message", "title", "authors"}


def test_callbacks_are_one_package_behind_both_doors(root: Path) -> None:
    link = root / "looplit" / "callbacks"
    assert link.is_symlink()
    assert link.resolve() == root / "callbacks"
    import looplit.callbacks.growth

    assert looplit.callbacks.ModelGrowth is looplit.callbacks.growth.ModelGrowth


def test_every_public_name_loads() -> None:
    for name in looplit.__all__:
        assert getattr(looplit, name) is not None
    with pytest.raises(AttributeError, match="No looplit attribute nothing"):
        looplit.nothing  # noqa: B018


def test_a_star_import_hides_no_builtin() -> None:
    assert not set(looplit.__all__) & set(dir(builtins))
    assert "eval" in dir(looplit)


@pytest.mark.parametrize("args", [["--help"], ["recipe", "truncated_loop", "--passes", "8", "--yaml"]])
def test_a_reader_that_stops_reading_is_no_error(args: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        ended = subprocess.run(
            [sys.executable, "-m", "looplit", *args], stdout=closed, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize(
    "module", ["looplit", "looplit.recipes.growth_study", "looplit.commands.recipe", "looplit.model.config"]
)
def test_numbers_need_neither_torch_nor_lightning(module: str) -> None:
    loaded = python(f"import sys, {module}; print(*sys.modules)").split()
    assert not {"torch", "lightning", "litdata", "jsonargparse"} & set(loaded)


def test_the_model_needs_no_lightning() -> None:
    loaded = python(
        "import sys, looplit.model.growth, looplit.model.backbone, looplit.optim; print(*sys.modules)"
    ).split()
    assert "lightning" not in loaded


def test_only_the_command_line_imports_callbacks(root: Path) -> None:
    for source in (root / "looplit").rglob("*.py"):
        if "callbacks" in source.parts or source.name == "cli.py":
            continue
        for line in source.read_text().splitlines():
            assert not (line.lstrip().startswith(("import ", "from ")) and "looplit.callbacks" in line), source
