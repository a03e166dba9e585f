"""`python -m looplit prepare`, and the data sections of the configs."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import looplit.data
from looplit.commands.prepare import prepare_main, prepare_parser, source_of
from looplit.data import Corpus, TextFolder, TokenData, open_corpus
from looplit.data.hub import HubDataset
from looplit.errors import InputError

README = str(Path(__file__).parents[2] / "README.md")


@pytest.fixture
def texts(tmp_path: Path, library_texts: list[str]) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, text in enumerate(library_texts):
        (folder / f"{number:03}.txt").write_text(text, encoding="utf-8")
    return folder


def test_a_folder_is_prepared_and_read(texts: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [str(texts), "--folder", str(tmp_path / "corpus"), "--tokenizer", "bytes", "--context", "64"]
    assert prepare_main([*arguments, "--workers", "2", "--tokens", "100K"]) == 0
    out, err = capfd.readouterr()
    corpus = open_corpus(tmp_path / "corpus")
    train = corpus.splits["train"]
    assert (train.blocks, train.tokens) == (100_000 // 65, 100_000 // 65 * 65)
    assert f"train       {train.tokens:,} tokens in {train.blocks:,} blocks" in out
    assert "documents=" in err
    assert "token/s" in err
    data = TextFolder(str(tmp_path / "corpus"), context=64, batch_size=8)
    data.setup()
    assert next(iter(data.train_dataloader())).shape == (8, 65)
    assert prepare_main([*arguments, "--tokens", "0.1M", "--quiet"]) == 0  # it is there
    assert capfd.readouterr() == ("", "")
    with pytest.raises(InputError, match="holds a corpus of tokens 100000, not None"):
        prepare_main(arguments)


def test_the_corpus_lies_outside_of_its_text(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "held_out").mkdir()
    (tmp_path / "held_out" / "a.txt").write_text("text")
    (tmp_path / "link").symlink_to(texts)
    for folder in (texts, texts / "corpus", tmp_path / "link" / "corpus", tmp_path / "held_out" / "corpus"):
        with pytest.raises(InputError, match="folder = .*: lies in .*, whose text it would become; take a folder out"):
            prepare_main([str(texts), "--validation", str(tmp_path / "held_out"), "--folder", str(folder)])


def test_what_was_not_read_is_said(texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.csv", "b.csv", "c.tsv"):
        (texts / name).write_text("")
    arguments = ["--folder", str(tmp_path / "corpus"), "--tokenizer", "bytes", "--context", "64", "--workers", "1"]
    for _ in range(2):  # prepared, and found
        prepare_main([str(texts), *arguments])
        out = capsys.readouterr().out
        assert out.endswith("validation is the last 5.0000% of every text\nleft out: 3 files (2 .csv, 1 .tsv)\n")
    assert open_corpus(tmp_path / "corpus").settings["left_out"] == {".csv": 2, ".tsv": 1}


def test_resume_is_an_option(texts: Path, tmp_path: Path) -> None:
    arguments = [str(texts), "--folder", str(tmp_path / "corpus"), "--tokenizer", "bytes", "--workers", "1", "--quiet"]
    assert prepare_main([*arguments, "--context", "64", "--resume"]) == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere"], "source = 'nowhere': must be fineweb, fineweb-edu, standard-library, a file, a folder, or"),
        (["fineweb", "--column", "body"], "--column: is not for the source fineweb"),
        (["standard-library", "--val_tokens", "1M"], "--val_tokens: is not for the source standard-library"),
        (["standard-library", "--offline"], "--offline: is not for the source standard-library"),
        ([__file__, "--revision", "main"], "--revision: is not for the source "),
        (["fineweb", "--tokens", "many"], "'many' is not a positive number"),
        (["fineweb", "--context", "0"], "context = 0: must be at least 1"),
        (["fineweb", "--workers", "0"], "workers = 0: must be at least 1"),
        (["fineweb", "--context", "1000000000000"], "context = 1000000000000: must be at most 16777215"),
        (["fineweb", "--seed", "-1"], "seed = -1: must be at least 0"),
        (["fineweb", "--seed", "4294967296"], "seed = 4294967296: must be at most 4294967295"),
        (
            ["fineweb", "--tokenizer", "bytes", "--tokens", "10"],
            r"tokens = 10: must be at least one block, context \+ 1 =",
        ),
        (
            ["a/b", "--tokenizer", "bytes", "--val_tokens", "10"],
            r"val_tokens = 10: must be at least one block, context",
        ),
        (["fineweb", "--folder", "s3://b/x"], "folder = 's3://b/x': a corpus is prepared in a local folder; copy"),
        (["fineweb", "--folder", "local:b"], "folder = 'local:b': a corpus is prepared in a local folder; copy"),
        ([__file__, "--column", ""], "argument --column: must not be empty"),
        ([README, "--validation", "nowhere"], "validation = 'nowhere': there is no such file or folder"),
        (["./no/where"], "source = './no/where': there is no such file or folder"),
        (["/no/where"], "source = '/no/where': there is no such file or folder"),
        (["~/no/where"], "source = '~/no/where': there is no such file or folder"),
        (
            ["dta/text", "--tokenizer", "bytes", "--offline", "--downloads", "d"],
            "source = 'dta/text': no .*; nor is there a local file or fold",
        ),
        (["standard-library", "--tokenizer", "bytes", "--folder", "f" * 300], "folder = 'f+': .*File name too long"),
        (["fineweb", "--tokenizer", "gtp2"], "tokenizer = 'gtp2': must be one of"),
        (["fineweb", "--folder"], "argument --folder: expected one argument"),
        ([], "the following arguments are required: SOURCE"),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], line: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=line) as caught:
        prepare_main(["--folder", str(tmp_path / "corpus"), *arguments])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "dataset", "revision", "downloads"),
    [
        (["fineweb"], "HuggingFaceFW/fineweb", "9bb295ddab0e05d785b879661af7260fed5140fc", None),
        (["fineweb-edu"], "HuggingFaceFW/fineweb-edu", "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9", "here"),
        (["owner/name"], "owner/name", "main", None),
        (["owner/name/data/train-", "--revision", "v1", "--column", "body"], "owner/name", "v1", None),
    ],
)
def test_sources_of_the_hub(
    arguments: list[str],
    dataset: str,
    revision: str,
    downloads: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made: list[Any] = []
    monkeypatch.setattr(HubDataset, "names", lambda self, prefix: made.append(self) or ["a.parquet", "b.parquet"])
    given = [] if downloads is None else ["--downloads", str(tmp_path / downloads)]
    source = source_of(prepare_parser().parse_args([*arguments, "--folder", "f", *given]))
    source.shards()
    assert (source.settings["source"], source.settings["revision"]) == (dataset, revision)
    assert (made[0].dataset, made[0].revision) == (dataset, revision)
    cache = tmp_path / "looplit/downloads" / dataset.replace("/", "--") / revision
    assert made[0].folder == (tmp_path / downloads if downloads else cache)


def test_help_and_mistakes_need_neither_torch_nor_lightning(root: Path) -> None:
    code = """if True:
        import sys
        from looplit.commands.prepare import prepare_main
        from looplit.errors import InputError
        for arguments in (["--help"], ["fineweb"]):
            try:
                prepare_main(arguments)
            except (SystemExit, InputError):
                pass
        import looplit.data.encode
        sys.exit(any(name in sys.modules for name in ("torch", "lightning", "litdata")))
    """
    assert subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, check=False).returncode == 0


def test_every_config_has_data_that_builds(root: Path) -> None:
    configs = sorted((root / "configs").rglob("*.yaml"))
    assert configs
    for config in configs:
        section = yaml.safe_load(config.read_text(encoding="utf-8"))["data"]
        data = getattr(looplit.data, section["class_path"])(**section["init_args"])
        assert isinstance(data, TokenData), config.name
        assert section["class_path"] in looplit.data.__all__
        if "data_constrained" in config.name:
            assert data.pool_tokens in (100_000_000, 250_000_000, 1_000_000_000)


def test_the_data_constrained_pools_give_the_study_s_steps(numbered_once: Callable[..., Corpus]) -> None:
    """SPEC section 7: 190 steps of 256 windows an epoch over 100M tokens, 476 over 250M, 1,906 fresh ones over 1B."""
    corpus = dataclasses.replace(numbered_once(), block=2049)
    for pool_tokens, steps in ((100_000_000, 190), (250_000_000, 476), (1_000_000_000, 1906)):
        data = TokenData("unused", context=2048, pool_tokens=pool_tokens)
        data._corpus = corpus
        assert data.train_blocks // 256 == steps
