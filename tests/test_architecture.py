"""The rooms of the house import one another in the order that docs/architecture.md states, and in no circle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

Edge = tuple[str, str]


def modules(root: Path) -> Iterator[tuple[str, Path]]:
    """Dotted names and files of the package; `callbacks/` is `looplit.callbacks`."""
    for folder, prefix in ((root / "looplit", ""), (root / "callbacks", "looplit.")):
        for file in sorted(folder.rglob("*.py")):
            path = file.relative_to(root)
            if path.parts[:2] != ("looplit", "callbacks"):
                yield prefix + ".".join(path.with_suffix("").parts).removesuffix(".__init__"), file


def statements(tree: ast.AST, typing: bool) -> Iterator[ast.AST]:
    """All nodes; without `typing`, not those that only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if not typing and isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        yield node
        yield from statements(node, typing)


def imports(name: str, file: Path, known: set[str], typing: bool) -> Iterator[Edge]:
    """(importing module, imported module) of every import in a file, those within functions included."""
    for node in statements(ast.parse(file.read_text(encoding="utf-8")), typing):
        if isinstance(node, ast.Import):
            yield from ((name, alias.name) for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "looplit":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield name, inner if inner in known else node.module


def room(module: str) -> str:
    """The room a module stands in: the folder or file below `looplit`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "looplit"


def upward(edges: Iterable[Edge], order: list[str]) -> list[str]:
    """Imports of a room by one that stands before it."""
    return [f"{a} imports {b}" for a, b in edges if order.index(room(b)) > order.index(room(a))]


def circle(edges: Iterable[Edge]) -> list[str] | None:
    """A circle of modules, or None."""
    needs: dict[str, set[str]] = {}
    for a, b in edges:
        if a != b:
            needs.setdefault(a, set()).add(b)
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


@pytest.fixture(scope="module")
def order(root: Path) -> list[str]:
    """The rooms in the order of the document's table, from the ground up."""
    text = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)


def edges_of(root: Path, typing: bool) -> list[Edge]:
    files = dict(modules(root))
    return [edge for name, file in files.items() for edge in imports(name, file, set(files), typing)]


@pytest.fixture(scope="module")
def edges(root: Path) -> list[Edge]:
    """All imports that run."""
    return edges_of(root, typing=False)


def test_the_document_names_every_room(root: Path, order: list[str]) -> None:
    rooms = {room(name) for name, _ in modules(root)}
    assert set(order) == rooms
    assert len(order) == len(rooms)


def test_no_import_runs_against_the_order(root: Path, order: list[str]) -> None:
    assert upward(edges_of(root, typing=True), order) == []


def test_there_is_no_circle(edges: list[Edge]) -> None:
    assert circle(edges) is None


def test_a_wrong_import_is_found(edges: list[Edge], order: list[str]) -> None:
    assert upward([*edges, ("looplit.laws.fit", "looplit.commands.output")], order)
    a, b = next((a, b) for a, b in edges if a != b and room(a) == room(b))
    assert circle([*edges, (b, a)])
