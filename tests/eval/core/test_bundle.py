"""The bundle: layout, fingerprint, download."""

from __future__ import annotations

import hashlib
import stat
import zipfile
from pathlib import Path

import pytest
from helpers.core_bundle import Made, write_bundle
from helpers.hub_server import HubServer

from looplit.errors import InputError
from looplit.eval.core import find_bundle, fingerprint, open_bundle
from looplit.eval.core.bundle import read_examples
from looplit.eval.core.fetch import download_bundle


def test_fingerprint_of_the_published_example(tmp_path: Path) -> None:
    (tmp_path / "eval_data" / "b").mkdir(parents=True)
    (tmp_path / "core.yaml").write_text("x: 1\n")
    (tmp_path / "eval_meta_data.csv").write_text("Eval Task,Random baseline\n")
    (tmp_path / "eval_data" / "b" / "one.jsonl").write_text('{"q": 1}\n')
    assert fingerprint(tmp_path) == "7fcf5d66e3a981b9a0aefce1c571f995eb235e16bfdd197769df20e37e2e0e1c"


def test_fingerprint_takes_files_before_folders(tmp_path: Path) -> None:
    paths = ["b.txt", "z.txt", "a/inner.txt", "a/b/deep.txt", "c/x.txt"]  # the order of the walk
    for path in reversed(paths):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    text = "".join(path + hashlib.sha256(path.encode()).hexdigest() for path in paths)
    assert fingerprint(tmp_path) == hashlib.sha256(text.encode()).hexdigest()


def test_opens_the_folder_or_the_one_around_it(bundle_folder: Path) -> None:
    bundle = find_bundle(bundle_folder.parent)
    assert bundle == open_bundle(bundle_folder)
    assert len(bundle.tasks) == 22
    assert not bundle.published
    assert bundle.tasks["jeopardy"].baseline == 0.25
    assert [task.n_shots for task in bundle.tasks.values()][:4] == [0, 3, 1, 10]
    assert {task.delimiter for task in bundle.tasks.values()} == {" ", "\nAnswer: ", ""}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("core.yaml|some kind/", "../../", "dataset_uri of mine.*leaves the bundle"),
        (
            "core.yaml|num_fewshot: [1]",
            "num_fewshot: [true]",
            r"num_fewshot of mine = \[True\]: must start with a count",
        ),
        ("core.yaml|mine.jsonl", "none.jsonl", "there is no such file"),
        ("core.yaml|schema", "essay", "must be one of multiple_choice"),
        ("core.yaml|icl_tasks", "tasks", "no readable list"),
        ("core.yaml|num_fewshot: [1]", "num_fewshot: [-1]", "num_fewshot of mine"),
        (
            "core.yaml|icl_task_type: schema",
            "icl_task_type: schema\n  continuation_delimiter:",
            "delimiter of mine = None",
        ),
        ("eval_meta_data.csv|mine", "yours", "mine.*has no line"),
        ("eval_meta_data.csv|25.0", "100", "from 0 to below 100"),
        ("eval_meta_data.csv|25.0", "", "from 0 to below 100"),
    ],
)
def test_malformed_bundles_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    folder = write_bundle(tmp_path / "b", [Made("mine", "schema", [1], 3)])
    name, _, old = old.partition("|")
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))
    with pytest.raises(InputError, match=message):
        open_bundle(folder)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"query": "a", "choices": ["b"], "gold": 1}',
        '{"query": "a", "choices": ["b", "c"], "gold": true}',
        '{"query": "a", "choices": "bc", "gold": 0}',
        '{"query": 1, "choices": [null], "gold": 0}',
    ],
)
def test_a_malformed_example_is_named_by_file_and_line(tmp_path: Path, line: str) -> None:
    folder = write_bundle(tmp_path / "b", [Made("mine", "multiple_choice", [1], 2)])
    with (folder / "eval_data" / "some kind" / "mine.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=r"mine\.jsonl line 3"):
        read_examples(open_bundle(folder).tasks["mine"])


def zipped(folder: Path, into: Path, extra: dict[str | zipfile.ZipInfo, bytes] | None = None) -> Path:
    with zipfile.ZipFile(into, "w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, f"eval_bundle/{path.relative_to(folder).as_posix()}")
        for name, content in (extra or {}).items():
            archive.writestr(name, content)
    return into


@pytest.mark.parametrize("name", ["core.yaml", "eval_meta_data.csv", "eval_data/mine.jsonl"])
def test_a_file_that_is_no_text_is_named(tmp_path: Path, name: str) -> None:
    folder = write_bundle(tmp_path, [Made("mine", "multiple_choice", [0], 1)])
    file = next(folder.rglob(Path(name).name))
    file.write_bytes(file.read_bytes() + b"\xe9")
    with pytest.raises(InputError, match=f"bundle = .*{Path(name).name}': not a text in UTF-8"):
        read_examples(open_bundle(folder).tasks["mine"])


@pytest.fixture
def archive_url(hub: HubServer, bundle_folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of the bundle's archive, which lies at hub.root/"b.zip"."""
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    zipped(bundle_folder, hub.root / "b.zip", {"__MACOSX/._core.yaml": b"x"})
    return f"{hub.address}/files/b.zip"


def test_a_download_is_unpacked_where_it_belongs(tmp_path: Path, bundle_folder: Path, archive_url: str) -> None:
    download_bundle(tmp_path / "cache" / "eval_bundle", archive_url, fingerprint(bundle_folder))
    assert open_bundle(tmp_path / "cache" / "eval_bundle").fingerprint == fingerprint(bundle_folder)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["eval_bundle"]


def linked(path: str) -> zipfile.ZipInfo:
    """An entry that is a symbolic link."""
    entry = zipfile.ZipInfo(path)
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("half", "not a zip"),
        ("other", "fingerprint"),
        ("up", "'../../outside.txt': this path in the archive leaves the bundle"),
        ("absolute", "'/tmp/outside.txt': this path in the archive leaves the bundle"),
        ("link", "'eval_bundle/link': this path in the archive leaves the bundle"),
        ("large", "an archive must hold at most 100 bytes"),
        ("none", "no core.yaml"),
    ],
)
def test_a_bad_download_leaves_nothing_behind(
    tmp_path: Path, bundle_folder: Path, hub: HubServer, archive_url: str, damage: str, message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    extra: dict[str, dict[str | zipfile.ZipInfo, bytes]] = {
        "other": {"eval_bundle/more.txt": b"x"},
        "up": {"../../outside.txt": b"x"},
        "absolute": {"/tmp/outside.txt": b"x"},
        "link": {linked("eval_bundle/link"): b"/etc"},
    }
    archive = zipped(tmp_path / "empty" if damage == "none" else bundle_folder, hub.root / "b.zip", extra.get(damage))
    if damage == "half":
        archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    if damage == "large":
        monkeypatch.setattr("looplit.eval.core.fetch.MOST_BYTES", 100)
    with pytest.raises(InputError, match=message):
        download_bundle(tmp_path / "cache" / "eval_bundle", archive_url, fingerprint(bundle_folder))
    assert list((tmp_path / "cache").iterdir()) == []
    assert not (tmp_path / "outside.txt").exists()


def test_a_download_is_tried_again(tmp_path: Path, bundle_folder: Path, hub: HubServer, archive_url: str) -> None:
    hub.faults["file"] = ["cut", 503]
    download_bundle(tmp_path / "eval_bundle", archive_url, fingerprint(bundle_folder))
    assert len(hub.requests) == 3


@pytest.mark.parametrize("fault", ["cut", 404])
def test_a_download_that_fails_is_one_line(
    tmp_path: Path, hub: HubServer, archive_url: str, fault: int | str
) -> None:  # fmt: skip
    hub.always["file"] = fault
    line = r"bundle: http://.*b\.zip could not be downloaded \(.*core\.yaml exists, or give its folder"
    with pytest.raises(InputError, match=line) as caught:
        download_bundle(tmp_path / "cache" / "eval_bundle", archive_url)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_first_of_two_downloads_stays(tmp_path: Path, bundle_folder: Path, archive_url: str) -> None:
    there = tmp_path / "cache" / "eval_bundle"
    for _ in range(2):
        download_bundle(there, archive_url, fingerprint(bundle_folder))
    assert [path.name for path in there.parent.iterdir()] == ["eval_bundle"]
    assert fingerprint(there) == fingerprint(bundle_folder)


def test_without_a_connection_one_line_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **settings: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr("requests.get", refuse)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(InputError, match=r"no route.*unpack eval_bundle\.zip so that .*core\.yaml exists") as caught:
        find_bundle()
    assert "\n" not in str(caught.value)


def test_a_copy_in_the_cache_must_be_the_published_one(
    tmp_path: Path, bundle_folder: Path, archive_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    download_bundle(tmp_path / "looplit" / "eval_bundle", archive_url, fingerprint(bundle_folder))
    with pytest.raises(InputError, match="differs from the published bundle"):
        find_bundle()
