"""`python -m looplit prepare`: from text to a prepared corpus."""

from __future__ import annotations

import argparse
import os
import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from looplit.commands.arguments import CommandParser, count, integer, nonempty
from looplit.data.corpus import LARGEST_CONTEXT, LARGEST_SEED
from looplit.data.remote import is_remote, user_cache_folder
from looplit.errors import InputError, RunStopped, require, require_between

if TYPE_CHECKING:
    from looplit.data.corpus import Corpus
    from looplit.data.sources import Shards, Source

DESCRIPTION = """\
Tokenize text into a folder that training reads. SOURCE is one of

  fineweb, fineweb-edu   as the growth study reads them
  standard-library       the text of the running Python; no download
  a file or folder       of parquet, JSON lines (also .gz, .zst, .bz2) or text (a document per file); links are
                         followed, hidden files are not read, the others are counted
  owner/name             a dataset on the hub; owner/name/data/train- takes the files whose paths begin so

The folder appears when everything is done. An interrupted preparation continues with --resume; without it, what it
left behind is removed. A shard's text is held in memory (4 GB for FineWeb). All of FineWeb's training text is 300 GB
of downloads and 200 GB of tokens: --tokens takes what a run needs.
"""


def prepare_main(argv: list[str]) -> int:
    """`prepare SOURCE --folder FOLDER …`: writes a corpus, or finds it there, and prints what it holds.

    Raises:
        InputError: Wrong input, in one line.
        RunStopped: A signal ended it, or a tokenizing process was killed.
    """
    args = prepare_parser().parse_args(argv)
    require_between("context", args.context, 1, LARGEST_CONTEXT)
    require_between("workers", args.workers, 1)
    require_between("seed", args.seed, 0, LARGEST_SEED)
    require(
        not (is_remote(args.folder) or "://" in args.folder), "folder", args.folder,
        "a corpus is prepared in a local folder; copy that to the object store afterwards",
    )  # fmt: skip
    with _signals_are_one_line():
        corpus = _prepare(args)
    if not args.quiet:
        print(summary(corpus), end="")
    return 0


def _prepare(args: argparse.Namespace) -> Corpus:
    # The writer brings torch: not for --help, nor for an argument that is wrong.
    from looplit.data.prepare import prepare_corpus
    from looplit.data.tokenizer import load_tokenizer

    return prepare_corpus(
        Path(args.folder).expanduser(),
        source_of(args),
        load_tokenizer(args.tokenizer),
        args.context + 1,
        tokens=args.tokens,
        seed=args.seed,
        workers=args.workers,
        resume=args.resume,
        progress=not args.quiet,
    )


@contextmanager
def _signals_are_one_line() -> Iterator[None]:
    """Raises `RunStopped` for Ctrl-C and SIGTERM, after the block's own clean-up."""

    def stop(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt(number)  # no Exception: nothing on its way takes it for a failure to retry

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt as error:
        received = signal.Signals(error.args[0] if error.args else signal.SIGINT)
        raise RunStopped(
            f"prepare was stopped by {received.name}; the same command with --resume continues it", 128 + received
        ) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def prepare_parser() -> argparse.ArgumentParser:
    """The options of `prepare`."""
    parser = CommandParser("prepare", "SOURCE --folder FOLDER", description=DESCRIPTION)
    parser.add_argument("source", metavar="SOURCE", type=nonempty, help="see above")
    add = parser.add_argument_group("corpus").add_argument
    add("--folder", required=True, type=nonempty, help="where it will lie")
    add("--tokenizer", default="gpt2", help="bytes, or an encoding of tiktoken")
    add("--context", type=integer, default=2048, help="tokens a model will see")
    add("--tokens", type=count, help="training tokens at most, e.g. 30B (default all)")
    add("--seed", type=integer, default=0, help="of the order of the documents")
    add = parser.add_argument_group("work").add_argument
    add("--workers", type=integer, default=os.cpu_count() or 1, help="tokenizing processes (default one per core)")
    add("--resume", action="store_true", help="continue an interrupted preparation")
    add("--quiet", action="store_true", help="no progress bar and no summary")
    add = parser.add_argument_group("text of one's own, and of the hub").add_argument
    add("--column", type=nonempty, help="name of the text in parquet and JSON lines (default text)")
    add("--validation", metavar="PATH", type=nonempty,
        help="separate validation files (default a sample of the documents, by hash, and of fewer than 1000 text files "
        "the ends of all)")  # fmt: skip
    add("--val_tokens", type=count, help="validation tokens at most (default 10M)")
    add("--revision", type=nonempty, help="commit, tag or branch on the hub (default main)")
    add = parser.add_argument_group("hub").add_argument
    add("--downloads", metavar="PATH", type=nonempty, help="where its files are kept (default a user cache folder)")
    add("--offline", action="store_true", help="take the files that lie in --downloads")
    return parser


def source_of(args: argparse.Namespace) -> Source:
    """The source that parsed options name.

    Raises:
        InputError: There is no such source, or an option that it does not have.
    """
    from looplit.data import sources

    name = args.source
    own, of_hub = (
        {option: getattr(args, option) for option in options if getattr(args, option) not in (None, False)}
        for options in (("column", "validation", "val_tokens", "revision"), ("downloads", "offline"))
    )
    published = {
        "fineweb": (sources.fineweb, sources.FINEWEB, sources.FINEWEB_REVISION),
        "fineweb-edu": (sources.fineweb_edu, sources.FINEWEB_EDU, sources.FINEWEB_EDU_REVISION),
    }
    if name in published:
        make, dataset, revision = published[name]
        _refuse(own, name)
        return make(_downloads(args, dataset, revision), offline=args.offline)
    if name == "standard-library":
        _refuse({**own, **of_hub}, name)
        return sources.standard_library()
    path = Path(name).expanduser()
    if path.exists():
        _refuse([*(option for option in own if option == "revision"), *of_hub], name)
        if "validation" in own:
            own["validation"] = Path(own["validation"]).expanduser()
        for text in (path, own.get("validation", path)):
            _require_outside(Path(args.folder).expanduser(), text)
        return sources.local_files(path, **own)
    require(not name.startswith((".", "/", "~")), "source", name, "there is no such file or folder")
    require(
        re.fullmatch(r"\w[\w.-]*/\w[\w.-]*(/.*)?", name) is not None, "source", name,
        f"must be {', '.join(published)}, standard-library, a file, a folder, or owner/name on the hub",
    )  # fmt: skip
    dataset = "/".join(name.split("/")[:2])
    source = sources.hub_dataset(
        name, _downloads(args, dataset, args.revision or "main"), **own, offline=args.offline
    )  # fmt: skip
    return replace(source, shards=lambda: _shards_or_typo(source, name))


def _require_outside(folder: Path, text: Path) -> None:
    require(
        not folder.resolve().is_relative_to(text.resolve()), "folder", str(folder),
        f"lies in {text}, whose text it would become; take a folder outside of it",
    )  # fmt: skip


def _shards_or_typo(source: Source, name: str) -> Shards:
    try:
        return source.shards()
    except InputError as error:
        raise InputError(f"{error}; nor is there a local file or folder {name!r}") from error


def _refuse(options: Iterable[str], source: str) -> None:
    for option in options:
        raise InputError(f"--{option}: is not for the source {source}")


def _downloads(args: argparse.Namespace, dataset: str, revision: str) -> Path:
    if args.downloads is not None:
        return Path(args.downloads).expanduser()
    return user_cache_folder() / "downloads" / dataset.replace("/", "--") / revision


def summary(corpus: Corpus) -> str:
    """What a corpus holds, a line per split, how its validation was chosen, and which files were not read."""
    from looplit.data.files import describe_left_out

    lines = [f"{corpus.folder}: {corpus.settings['tokenizer']} tokens in blocks of {corpus.block}, {corpus.dtype}"]
    for name, split in corpus.splits.items():
        lines.append(
            f"{name:10}  {split.tokens:,} tokens in {split.blocks:,} blocks, {split.dropped_tokens:,} tokens left at "
            f"the end; {split.documents:,} documents, {split.empty_documents:,} empty, "
            f"{split.excluded_documents:,} left out"
        )
    if "validation" in corpus.settings:
        lines.append(f"validation is {corpus.settings['validation']}")
    if corpus.settings.get("left_out"):
        lines.append(describe_left_out(corpus.settings["left_out"]))
    return "".join(f"{line}\n" for line in lines)
