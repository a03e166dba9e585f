"""Sources: the rules of FineWeb and FineWeb-Edu, local files of every kind, the hub with its failures."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.hub_server import HubServer

from looplit.data import Corpus, load_tokenizer, prepare_corpus
from looplit.data.dataset import BlockDataset
from looplit.data.files import find_files
from looplit.data.hub import HubDataset
from looplit.data.shards import as_documents, text_shards
from looplit.data.sources import (
    FINEWEB_EDU_REVISION,
    FINEWEB_REVISION,
    VALIDATION_PER_MILLE,
    fineweb,
    fineweb_edu,
    hub_dataset,
    local_files,
)
from looplit.data.tokenizer import encode_document
from looplit.errors import InputError

BYTES = load_tokenizer("bytes")
BLOCK = 65
WriteParquet = Callable[..., None]


def prepare(folder: Path, source: Any, **options: Any) -> Corpus:
    return prepare_corpus(folder, source, BYTES, BLOCK, **options)


def tokens_of(texts: list[str]) -> np.ndarray:
    return np.concatenate([encode_document(BYTES, text) for text in texts])


def read(corpus: Corpus, split: str) -> list[int]:
    blocks: list[int] = np.array(list(BlockDataset(corpus, split, shuffle=False))).ravel().tolist()
    return blocks


def shuffled(shards: list[list[str]]) -> list[str]:
    return [
        texts[place]
        for number, texts in enumerate(shards)
        for place in np.random.RandomState([0, number]).permutation(len(texts))
    ]


@pytest.fixture
def fineweb_hub(hub: HubServer, parquet_file: WriteParquet, library_texts: list[str]) -> HubServer:
    """Both datasets in miniature. In FineWeb, sample/100BT has documents of sample/10BT again, one with a new end."""
    root = hub.root
    ten, hundred = library_texts[:60], library_texts[60:200]
    again = ["", ten[3], ten[5][:64] + " but then it goes on differently", ten[7][:63] + "is new", ten[50]]
    for name, texts in (
        ("10BT/000_00000", ten[:40]), ("10BT/001_00000", ten[40:]),
        ("100BT/000_00000", hundred[:50] + again), ("100BT/001_00000", hundred[50:]),
    ):  # fmt: skip
        parquet_file(root / "HuggingFaceFW/fineweb/sample" / f"{name}.parquet", texts)
    for number in range(3):
        texts = library_texts[50 * number : 50 * number + 50]
        parquet_file(root / "HuggingFaceFW/fineweb-edu/sample/100BT" / f"00{number}_00000.parquet", texts)
    return hub


def test_fineweb(fineweb_hub: HubServer, tmp_path: Path, library_texts: list[str]) -> None:
    source = fineweb(tmp_path / "downloads")
    assert (source.val_tokens, source.signature_tokens) == (10_000_000, 64)
    assert source.settings["revision"] == "9bb295ddab0e05d785b879661af7260fed5140fc"
    val_tokens = len(tokens_of(library_texts[:45])) - 100  # the budget ends in document 44, of the second file
    corpus = prepare(tmp_path / "corpus", dataclasses.replace(source, val_tokens=val_tokens))
    validation, train = corpus.splits["validation"], corpus.splits["train"]
    assert read(corpus, "validation") == tokens_of(library_texts[:45]).tolist()[: val_tokens // BLOCK * BLOCK]
    assert validation.documents == 45
    assert validation.shards == ("sample/10BT/000_00000.parquet", "sample/10BT/001_00000.parquet")

    seen = {hashlib.sha1(encode_document(BYTES, text)[1:65].tobytes()).digest() for text in library_texts[:45]}
    first, second = library_texts[60:110], library_texts[110:200]
    again = ["", library_texts[3], library_texts[5][:64] + " but then it goes on differently",
             library_texts[7][:63] + "is new", library_texts[50]]  # fmt: skip
    kept = [
        text
        for text in shuffled([first + again, second])
        if hashlib.sha1(encode_document(BYTES, text)[1:65].tobytes()).digest() not in seen
    ]
    assert {"", library_texts[7][:63] + "is new", library_texts[50]} <= {*kept}  # 50 comes after the budget
    tokens = tokens_of(kept)
    assert read(corpus, "train") == tokens.tolist()[: len(tokens) // BLOCK * BLOCK]
    assert train.excluded_documents == 145 - len(kept) >= 2
    assert {request[2] for request in fineweb_hub.requests if request[0] != "file"} == {FINEWEB_REVISION}


def test_fineweb_edu(fineweb_hub: HubServer, tmp_path: Path, library_texts: list[str]) -> None:
    source = fineweb_edu(tmp_path / "downloads")
    assert (source.val_tokens, source.signature_tokens) == (10_200_000, 0)
    corpus = prepare(tmp_path / "corpus", dataclasses.replace(source, val_tokens=BLOCK * 100))
    assert read(corpus, "validation") == tokens_of(library_texts[:50]).tolist()[: BLOCK * 100]
    tokens = tokens_of(shuffled([library_texts[50:100], library_texts[100:150]]))
    assert read(corpus, "train") == tokens.tolist()[: len(tokens) // BLOCK * BLOCK]
    assert corpus.splits["validation"].shards == ("sample/100BT/000_00000.parquet",)
    assert corpus.splits["train"].excluded_documents == 0
    assert {request[2] for request in fineweb_hub.requests if request[0] != "file"} == {FINEWEB_EDU_REVISION}


def test_only_the_shards_that_a_budget_needs_are_fetched(fineweb_hub: HubServer, tmp_path: Path) -> None:
    source = dataclasses.replace(fineweb(tmp_path / "downloads"), val_tokens=1000)
    prepare(tmp_path / "corpus", source, tokens=2000)
    assert fineweb_hub.asked("list") == ["sample/100BT", "sample/10BT"]
    assert fineweb_hub.asked("file") == ["sample/10BT/000_00000.parquet", "sample/100BT/000_00000.parquet"]


def test_nothing_is_asked_when_files_are_there(fineweb_hub: HubServer, tmp_path: Path) -> None:
    first = prepare(tmp_path / "one", fineweb(tmp_path / "downloads"))
    fineweb_hub.requests.clear()
    again = prepare(tmp_path / "two", fineweb(tmp_path / "downloads"))
    (tmp_path / "downloads" / "listing.json").unlink()
    offline = prepare(tmp_path / "three", fineweb(tmp_path / "downloads", offline=True))
    assert first.splits == again.splits == offline.splits
    assert fineweb_hub.requests == []
    with pytest.raises(InputError, match=r"no parquet, JSON lines or text in .* \(offline\)"):
        prepare(tmp_path / "four", fineweb(tmp_path / "nothing", offline=True))


FINEWEB = "HuggingFaceFW/fineweb"
FIRST = "sample/10BT/000_00000.parquet"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that would have been slept, here and in the hub's client."""
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    return slept


@pytest.mark.parametrize("kind", ["list", "look", "file"])
@pytest.mark.parametrize("fault", [503, 429, "cut"])
def test_failures_of_the_hub_are_retried(
    fineweb_hub: HubServer, tmp_path: Path, waits: list[float], kind: str, fault: int | str
) -> None:
    fineweb_hub.faults[kind] = [fault] * 2
    files = HubDataset(FINEWEB, "main", tmp_path / "d")
    assert files.names("sample/10BT/") == [f"sample/10BT/00{number}_00000.parquet" for number in range(2)]
    assert files.path(FIRST).read_bytes() == (fineweb_hub.root / FINEWEB / FIRST).read_bytes()
    assert 0 < sum(waits) < 60
    assert len(fineweb_hub.requests) >= 3 + 2


def test_a_cut_download_goes_on_where_it_ended(fineweb_hub: HubServer, tmp_path: Path, waits: list[float]) -> None:
    files = HubDataset(FINEWEB, "main", tmp_path / "d")
    fineweb_hub.faults["file"] = ["cut", "cut"]
    whole = (fineweb_hub.root / FINEWEB / FIRST).read_bytes()
    assert files.path(FIRST).read_bytes() == whole
    assert 0.7 < fineweb_hub.starts[-1] / len(whole) < 0.75  # a half, and a half of the rest


def test_a_download_that_fails_leaves_nothing_half(fineweb_hub: HubServer, tmp_path: Path, waits: list[float]) -> None:
    files = HubDataset(FINEWEB, "main", tmp_path / "d")
    fineweb_hub.always["file"] = 503
    fineweb_hub.faults["file"] = ["cut"]
    with pytest.raises(InputError, match=f"source = '{FINEWEB}' at main: .*503"):
        files.path(FIRST)
    assert not (tmp_path / "d" / FIRST).exists()
    fineweb_hub.always.clear()
    assert files.path(FIRST).read_bytes() == (fineweb_hub.root / FINEWEB / FIRST).read_bytes()


@pytest.mark.parametrize(
    ("dataset", "revision", "prefix", "line"),
    [
        ("owner/nothing", "main", "", "no such dataset, or one that you must be logged in for"),
        (FINEWEB, "none", "", "no such revision"),
        (FINEWEB, "main", "nowhere/", "no such folder"),
        ("owner/na me", "main", "", "Repo id must use alphanumeric"),
    ],
)
def test_a_refusal_is_one_line_and_not_retried(
    fineweb_hub: HubServer, tmp_path: Path, waits: list[float], dataset: str, revision: str, prefix: str, line: str
) -> None:
    with pytest.raises(InputError, match=f"source = '{dataset}' at {revision}: {line}") as caught:
        HubDataset(dataset, revision, tmp_path / "d").names(prefix)
    assert "\n" not in str(caught.value)
    assert len(fineweb_hub.requests) <= 1
    assert waits == []


def test_without_a_network_there_is_one_line(
    fineweb_hub: HubServer, tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the listing and for a file, within two minutes of waiting; with HF_HUB_OFFLINE at once."""
    files = HubDataset(FINEWEB, "main", tmp_path / "d")
    files.names("sample/10BT/")
    fineweb_hub.shutdown()
    fineweb_hub.server_close()
    for ask in (lambda: files.names(""), lambda: files.path(FIRST)):
        waits.clear()
        with pytest.raises(InputError, match=f"source = '{FINEWEB}' at main: .*onnect") as caught:
            ask()
        assert "\n" not in str(caught.value)
        assert 60 < sum(waits) < 120
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    waits.clear()
    for ask in (lambda: files.names(""), lambda: files.path(FIRST)):
        with pytest.raises(InputError, match="HF_HUB_OFFLINE is set"):
            ask()
    assert waits == []


def test_a_damaged_file_is_fetched_again_and_a_changed_one_refused(fineweb_hub: HubServer, tmp_path: Path) -> None:
    files = HubDataset(FINEWEB, "main", tmp_path / "d")
    path = files.path(FIRST)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert files.path(FIRST).read_bytes() == whole
    (fineweb_hub.root / FINEWEB / FIRST).write_bytes(whole[:-1])
    path.unlink()
    with pytest.raises(InputError, match="the hub gave another size than"):
        files.path(FIRST)


def test_a_dataset_of_the_hub(fineweb_hub: HubServer, tmp_path: Path, parquet_file: WriteParquet) -> None:
    folder = fineweb_hub.root / "owner/stories/data"
    parquet_file(folder / "train-00000.parquet", [f"story {number} " * 9 for number in range(300)], column="story")
    parquet_file(folder / "validation-00000.parquet", [f"other {number} " * 9 for number in range(9)], column="story")
    (folder / "README.md.bin").write_text("")
    (fineweb_hub.root / "owner/stories/README.md").write_text("the dataset's card, no text of it")
    source = hub_dataset("owner/stories/data/train-", tmp_path / "d", column="story", validation="data/validation-")
    corpus = prepare(tmp_path / "corpus", source)
    assert corpus.settings["source"] == "owner/stories"
    assert (corpus.splits["train"].documents, corpus.splits["validation"].documents) == (300, 9)
    whole = hub_dataset("owner/stories", tmp_path / "d", column="story")
    kept = hub_dataset("owner/stories", tmp_path / "d", column="story", offline=True)
    for source in (whole, kept):
        assert [shard.name[:15] for shard in source.shards().training] == ["data/train-0000", "data/validation"]
    with pytest.raises(InputError, match=r"source = 'owner/stories/data/test-': no parquet"):
        prepare(tmp_path / "none", hub_dataset("owner/stories/data/test-", tmp_path / "d"))


@pytest.fixture
def mixed(tmp_path: Path, parquet_file: WriteParquet, library_texts: list[str]) -> tuple[Path, list[str]]:
    """A folder of every kind of file, and the documents in order of the files: parquet and JSON, then texts."""
    folder = tmp_path / "mixed"
    parquet_file(folder / "a.parquet", [*library_texts[:120], None])
    with gzip.open(folder / "b.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text, "id": 1}) + "\n\n" for text in library_texts[120:150])
    (folder / "deeper").mkdir()
    (folder / "deeper" / "c.ndjson").write_text('{"text": null}\n{"text": "lone \\ud800 surrogate"}\n')
    for number, text in enumerate(library_texts[150:160]):
        (folder / "deeper" / f"{number}.txt").write_text(text, encoding="utf-8")
    (folder / "notes.bin").write_bytes(b"\0")
    documents = [
        *library_texts[:120],
        "",
        *library_texts[120:150],
        "",
        "lone \ufffd surrogate",
        *library_texts[150:160],
    ]
    return folder, documents


def test_local_files_of_every_kind(mixed: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, documents = mixed
    before = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}
    source = local_files(folder)
    shards = source.shards().training
    assert [shard.name for shard in shards] == [
        "a.parquet", "b.jsonl.gz", "deeper/c.ndjson", "deeper/0.txt … deeper/9.txt",
    ]  # fmt: skip
    assert [text or "" for shard in shards for text in shard.documents().to_pylist()] == documents
    corpus = prepare(tmp_path / "corpus", source)
    assert {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in before} == before

    def drawn(text: str) -> bool:
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 1000 < VALIDATION_PER_MILLE

    train, validation = corpus.splits["train"], corpus.splits["validation"]
    held_out = [text for text in documents if drawn(text)]
    assert validation.documents == len(held_out) > 0
    assert validation.tokens == len(tokens_of(held_out))
    assert train.documents == len(documents) - len(held_out)
    assert train.excluded_documents == len(held_out)


def test_separate_validation_files(mixed: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, documents = mixed
    (tmp_path / "held_out.txt").write_text(documents[3])
    corpus = prepare(tmp_path / "corpus", local_files(folder, validation=tmp_path / "held_out.txt"))
    assert corpus.splits["validation"].documents == 1
    assert corpus.splits["train"].excluded_documents == 1  # the same document
    (tmp_path / "held_out.txt").write_text(documents[4])
    with pytest.raises(InputError, match="holds a corpus of validation "):
        prepare(tmp_path / "corpus", local_files(folder, validation=tmp_path / "held_out.txt"))


def test_one_file(tmp_path: Path, library_texts: list[str]) -> None:
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"body": text}) + "\n" for text in library_texts))
    corpus = prepare(tmp_path / "corpus", local_files(path, column="body"))
    assert corpus.splits["train"].shards == ("text.jsonl",)


def test_what_cannot_be_read_is_one_line(tmp_path: Path, parquet_file: WriteParquet) -> None:
    def refused(line: str, path: Path, **options: Any) -> None:
        with pytest.raises(InputError, match=line) as caught:
            prepare(tmp_path / "corpus", local_files(path, **options))
        assert "\n" not in str(caught.value)

    parquet_file(tmp_path / "a.parquet", ["text"] * 200)
    refused("column = 'content': .* has the columns text, id, ", tmp_path / "a.parquet", column="content")
    refused("column = 'token_count': holds int64", tmp_path / "a.parquet", column="token_count")
    twice = pa.table([pa.array(["one"]), pa.array(["two"])], names=["text", "text"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    refused("column = 'text': .*twice.parquet has 2 of that name", tmp_path / "twice.parquet")
    no_utf8 = pa.array([b"fine", b"\xff\xfe"]).view(pa.string())
    pq.write_table(pa.table({"text": no_utf8}), tmp_path / "bytes.parquet")
    refused("bytes.parquet': column 'text' cannot be read as UTF-8 text", tmp_path / "bytes.parquet")
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[4:40] = b"\xff" * 36  # the first page
    (tmp_path / "page.parquet").write_bytes(content)
    refused("page.parquet': no whole parquet file", tmp_path / "page.parquet")
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    refused(r"b\.parquet': no whole parquet file", tmp_path / "b.parquet")
    (tmp_path / "c.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    refused(r"c\.jsonl', line 2: no JSON object with the key 'text'", tmp_path / "c.jsonl")
    refused(r"line 1: no JSON object with the key 'body'", tmp_path / "c.jsonl", column="body")
    (tmp_path / "c.jsonl").write_text('{"text": 3}\n')
    refused(r"line 1: 'text' is not text", tmp_path / "c.jsonl")
    (tmp_path / "c.jsonl").write_text('{"text": ' + "[" * 200_000 + "]" * 200_000 + "}\n")
    refused(r"line 1: no JSON object with the key 'text'", tmp_path / "c.jsonl")
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "fine"}\n' * 9999)[:-20])
    refused(r"cut.jsonl.gz': no whole text file", tmp_path / "cut.jsonl.gz")
    for name in ("d.txt", "d.jsonl"):
        (tmp_path / name).write_bytes(b"\xff\xfe")
        refused("cannot be read as UTF-8 text", tmp_path / name)
    (tmp_path / "empty").mkdir()
    refused("holds no parquet, JSON lines or text file", tmp_path / "empty")
    (tmp_path / "empty" / "table.csv").write_text("a,b")
    (tmp_path / "empty" / ".hidden.txt").write_text("hidden")
    refused(r"holds no parquet, JSON lines or text file; left out: 1 file \(1 .csv\)", tmp_path / "empty")
    (tmp_path / "empty" / "broken.txt").symlink_to("nowhere")
    refused("broken.txt': is not a file, or a link that leads nowhere", tmp_path / "empty")
    refused("source = .*: there is no such file or folder", tmp_path / "nowhere")
    refused("validation = .*: there is no such file", tmp_path / "a.parquet", validation=tmp_path / "nowhere")
    refused("train tokens = 0: .*documents: 0, 200 left out as validation has them too", tmp_path / "a.parquet",
            validation=tmp_path / "a.parquet")  # fmt: skip
    refused("validation tokens = 0: fewer than one block of 65 .*give separate text", tmp_path / "a.parquet")
    refused("val_tokens = 10: must be at least one block, context", tmp_path / "a.parquet", val_tokens=10)


def test_links_are_followed_and_hidden_files_left_out(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside / "sub", inside / ".git", outside / "deep"):
        folder.mkdir(parents=True)
    for file in (inside / "a.txt", inside / ".b.txt", inside / ".git/c.txt", outside / "deep/d.TXT", inside / "e.csv"):
        file.write_text(file.name)
    (inside / "link").symlink_to(outside)
    (outside / "deep" / "loop").symlink_to(inside)
    (inside / "sub" / "again").symlink_to(outside / "deep")
    (inside / "sub" / "f.md").symlink_to(outside / "deep" / "d.TXT")
    found = find_files(inside)
    assert list(found.files) == ["a.txt", "link/deep/d.TXT", "sub/f.md"]
    assert found.left_out == {".csv": 1}


def test_changed_text_is_noticed_by_its_time(tmp_path: Path) -> None:
    path = tmp_path / "in" / "text.txt"
    path.parent.mkdir()
    path.write_text("a" * 9999)
    prepare(tmp_path / "corpus", local_files(path.parent))
    shutil.copytree(path.parent, tmp_path / "copy" / "in")  # which keeps the times
    prepare(tmp_path / "corpus", local_files(tmp_path / "copy" / "in"))
    status = path.stat()
    path.write_text("b" * 9999)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1000))
    with pytest.raises(
        InputError, match="holds a corpus of training files that have changed since, in name.* take another folder"
    ):
        prepare(tmp_path / "corpus", local_files(path.parent))


@pytest.mark.parametrize("count", [1, 10])
def test_few_texts_give_their_ends_as_validation(tmp_path: Path, library_texts: list[str], count: int) -> None:
    texts = ["".join(library_texts), *library_texts[1:9], "too short"][:count]
    (tmp_path / "in").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "in" / f"{number}.txt").write_text(text, encoding="utf-8")
    corpus = prepare(tmp_path / "corpus", local_files(tmp_path / "in"))
    cuts = [len(text) - int(0.05 * len(text)) for text in texts]
    ends = tokens_of([text[cut:] for text, cut in zip(texts, cuts, strict=True) if cut < len(text)])
    rest = tokens_of(shuffled([[text[:cut] for text, cut in zip(texts, cuts, strict=True)]]))
    for split, tokens in (("validation", ends), ("train", rest)):
        assert read(corpus, split) == tokens.tolist()[: len(tokens) // BLOCK * BLOCK]
    assert corpus.settings["validation"] == "the last 5.0000% of every text"


def test_ends_are_no_longer_than_the_validation_budget(tmp_path: Path) -> None:
    """Text that the budget of validation tokens would cut off is training text, not lost."""
    (tmp_path / "text.txt").write_text("0123456789" * 1000)
    corpus = prepare(tmp_path / "corpus", local_files(tmp_path / "text.txt", val_tokens=200))
    splits = corpus.splits
    assert splits["validation"].blocks == 200 // BLOCK
    assert splits["train"].tokens + splits["validation"].tokens > 10_002 - BLOCK  # a budget is whole blocks


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int32(), pa.string()), pa.string_view(), pa.large_string()], ids=str)
def test_text_columns_of_every_type(tmp_path: Path, kind: pa.DataType) -> None:
    texts = ["one", None, "two", "one"]
    pq.write_table(pa.table({"text": pa.array(texts).cast(kind), "none": pa.nulls(4)}), tmp_path / "a.parquet")
    for column, expected in (("text", texts), ("none", [None] * 4)):
        (shard,) = text_shards(["a.parquet"], lambda name: tmp_path / name, column)
        assert shard.documents().to_pylist() == expected


def test_byte_order_marks_and_suffixes_in_capitals(tmp_path: Path) -> None:
    line = '\ufeff{"text": "\ufeffkept"}\n'.encode()
    (tmp_path / "A.JSONL.GZ").write_bytes(gzip.compress(line) + gzip.compress(line[3:]))
    (tmp_path / "b.txt").write_bytes("\ufefftext".encode())
    shards = text_shards(["A.JSONL.GZ", "b.txt"], lambda name: tmp_path / name, "text")
    assert [shard.documents().to_pylist() for shard in shards] == [["\ufeffkept"] * 2, ["text"]]


def test_many_texts_are_several_shards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("looplit.data.shards.TEXTS_PER_SHARD", 4)
    for number in range(9):
        (tmp_path / f"{number}.md").write_text(str(number))
    names = sorted(path.name for path in tmp_path.iterdir())
    shards = text_shards(names, lambda name: tmp_path / name, "text")
    assert [shard.documents().to_pylist() for shard in shards] == [list("0123"), list("4567"), ["8"]]


def test_documents_in_memory_are_arrow() -> None:
    assert as_documents(["a", None, ""]).to_pylist() == ["a", None, ""]


def test_real_text_with_the_hubs_columns(
    tmp_path: Path, parquet_file: WriteParquet, library_texts: list[str], shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPT-2 tokens of three shards: one and two workers agree, and every token but the counted tail comes back."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(shared / "tiktoken_cache"))
    tokenizer = load_tokenizer("gpt2")
    parts = [library_texts[:90], library_texts[90:170], library_texts[170:260]]
    for number, texts in enumerate(parts):
        parquet_file(tmp_path / "in" / f"{number}.parquet", texts)
    parquet_file(tmp_path / "held_out.parquet", library_texts[260:])
    before = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(tmp_path.rglob("*.parquet"))}
    one, two = (
        prepare_corpus(
            tmp_path / f"out{workers}", local_files(tmp_path / "in", validation=tmp_path / "held_out.parquet"),
            tokenizer, 129, workers=workers, chunk_tokens=50 * 129,
        )
        for workers in (1, 2)
    )  # fmt: skip
    assert one.splits == two.splits
    assert {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in before} == before
    for name, texts in (("train", shuffled(parts)), ("validation", library_texts[260:])):
        expected = [token for text in texts for token in (50256, *tokenizer.encode_ordinary(text))]
        split = two.splits[name]
        assert read(two, name) == expected[: split.blocks * 129]
        assert split.dropped_tokens == len(expected) - split.blocks * 129 < 129
        assert (split.documents, split.tokens) == (len(texts), len(expected))
        assert split.text_bytes == sum(len(text.encode()) for text in texts)
