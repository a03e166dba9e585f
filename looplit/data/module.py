"""LightningDataModules over prepared corpora. They work without a Trainer too."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningDataModule
from litdata.utilities.env import _DistributedEnv
from torch import Tensor

from looplit.data.corpus import LARGEST_SEED, MANIFEST, Corpus, open_corpus, require_block
from looplit.data.dataset import BlockDataset, validation_share
from looplit.data.epochs import check_place, set_place
from looplit.data.loader import PlainBatches, ResumableLoader, TokenLoader
from looplit.data.prepare import corpus_key, corpus_settings, prepare_corpus
from looplit.data.remote import is_remote, user_cache_folder
from looplit.data.sources import FINEWEB, FINEWEB_EDU, Source, standard_library
from looplit.data.tokenizer import load_tokenizer
from looplit.errors import InputError, require, require_between


class TokenData(LightningDataModule):
    """Streams the blocks of a prepared corpus.

    Training batches are tensors (batch_size, context + 1) in the stored integer type, uint16 or uint32, to be cast on
    the device. Every epoch is a new permutation of the same blocks, fixed by `seed`; it consists of whole optimizer
    steps (batch_size · accumulate_grad_batches of the Trainer · processes blocks), so that less than one step of
    blocks is left out, others in each epoch. Validation comes in file order, each block once.

    Attributes, after `setup`:
        vocabulary: Token ids of the tokenizer.
        largest_token: Largest token id in the corpus.
        token_bytes: UTF-8 bytes per token id, 0 for special tokens; int64 tensor of shape (vocabulary,).

    Args:
        folder: A prepared corpus: a folder with a `corpus.json`, or the address of one in an object store
            (s3://, gs://, azure://, r2://), whose chunks are kept in a user cache folder while there is space.
        context: Tokens the model sees; a block has one more. Must be what the corpus was cut for.
        batch_size: Blocks per batch and process.
        workers: Processes that load training batches (validation uses one of them at most, to keep the order).
        seed: Of the permutations of the training blocks.
        pool_tokens: Train on the first so many tokens: floor(pool_tokens / (context + 1)) whole blocks. All by
            default.
        val_tokens: Validate on the first so many tokens at most, in whole blocks.
        verify: Check the hash of each chunk when a process first reads it (about 25 ms per 16M tokens).
        recut: Begin the training windows at another offset in every epoch, drawn by `seed`, so that a window does not
            come back (deviation from the data-constrained study, which reshuffles the same windows). An epoch still
            has each token of the pool once; one window in each chunk joins the chunk's end and its beginning.
        redeal: Let a run go on with another number of processes, batch size or workers than its checkpoint's. The
            order of the blocks depends on them, so that it begins a new epoch: blocks that the old one had left are
            left out there. Refused by default.
    """

    prepared_by: ClassVar[str] = "python -m looplit prepare SOURCE"
    source: ClassVar[str | None] = None  # what a corpus must have been made from, if it matters

    vocabulary: int
    largest_token: int
    token_bytes: Tensor

    def __init__(
        self,
        folder: str,
        context: int = 256,
        batch_size: int = 16,
        workers: int = 0,
        seed: int = 0,
        pool_tokens: int | None = None,
        val_tokens: int = 10_000_000,
        verify: bool = True,
        recut: bool = False,
        redeal: bool = False,
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("context", context, 1), ("batch_size", batch_size, 1), ("workers", workers, 0),
            ("val_tokens", val_tokens, context + 1),
            ("pool_tokens", context + 1 if pool_tokens is None else pool_tokens, context + 1),
        ):  # fmt: skip
            require(value >= least, name, value, f"must be at least {least}")
        require_between("seed", seed, 0, LARGEST_SEED)
        self.folder = folder if is_remote(folder) else str(Path(folder).expanduser())
        self.context = context
        self.batch_size = batch_size
        self.workers = workers
        self.seed = seed
        self.pool_tokens = pool_tokens
        self.val_tokens = val_tokens
        self.verify = verify
        self.recut = recut
        self.redeal = redeal
        self._corpus: Corpus | None = None

    @property
    def corpus_folder(self) -> str:
        """Where the prepared corpus lies: folder or address."""
        return self.folder

    @property
    def corpus(self) -> Corpus:
        """The prepared corpus; opened at `setup`."""
        if self._corpus is None:
            raise RuntimeError("the corpus is opened by setup(), which has not been called")
        return self._corpus

    def setup(self, stage: str | None = None) -> None:
        """Opens the corpus and sets the attributes that a model reads."""
        if self._corpus is not None:
            return
        folder = self.corpus_folder
        if not is_remote(folder) and not (Path(folder) / MANIFEST).is_file():
            raise InputError(f"folder = {folder!r}: has no {MANIFEST}, so it is not a prepared corpus; it is made by "
                             f"{self.prepared_by} --folder {folder}")  # fmt: skip
        corpus = open_corpus(folder)
        require_block(corpus, self.context)
        made_from = corpus.settings.get("source")
        require(self.source in (None, made_from), "folder", folder, f"was prepared from {made_from}, not {self.source}")
        self._corpus = corpus
        self.vocabulary = corpus.vocabulary
        self.largest_token = max(split.largest_token for split in corpus.splits.values())
        self.token_bytes = torch.from_numpy(corpus.load_token_bytes())
        stored = corpus.splits["train"].blocks
        require(
            self.train_blocks <= stored, "pool_tokens", self.pool_tokens,
            f"the corpus has {stored * corpus.block} tokens in whole blocks",
        )  # fmt: skip

    def record(self) -> dict[str, Any]:
        """What the record of a run says of its text, see `looplit.results`; known after `setup`."""
        return {
            **self.corpus.record(),
            "validation_tokens": self.val_blocks * self.corpus.block,
            "pool_tokens": self.pool_tokens,
            "recut": self.recut,
            "data_seed": self.seed,
        }

    @property
    def train_blocks(self) -> int:
        """Blocks in the training pool."""
        if self.pool_tokens is None:
            return self.corpus.splits["train"].blocks
        return self.pool_tokens // self.corpus.block

    @property
    def val_blocks(self) -> int:
        """Blocks to validate on, all processes together."""
        return min(self.val_tokens // self.corpus.block, self.corpus.splits["validation"].blocks)

    @property
    def train_batches(self) -> int:
        """Training batches after which one process begins its next epoch; no loader is built to know them.

        The Trainer's `limit_train_batches` is a number or a share.
        """
        batches, limit = self._epoch_batches(), self.trainer.limit_train_batches if self.trainer else 1.0
        return min(limit, batches) if isinstance(limit, int) else int(batches * limit)

    def train_dataloader(self) -> ResumableLoader:
        """Training batches of one process: as many on every process, in whole accumulation windows."""
        # Built here and not in setup: only now does LitData see the processes of a distributed run.
        dataset = BlockDataset(
            self.corpus, "train", shuffle=True, seed=self.seed, blocks=slice(0, self.train_blocks),
            verify=self.verify, recut=self.recut,
        )  # fmt: skip
        identity = {
            "corpus": self.corpus.splits["train"].fingerprint,
            "blocks": self.train_blocks,
            "recut": self.recut,
        }
        loader = ResumableLoader(
            dataset, self._epoch_batches(), self.batch_size, self.workers, identity, self.train_batches
        )
        if self.trainer:
            loop = self.trainer.fit_loop
            set_place(loader, loop, self.redeal)
            loader.begins = partial(check_place, loop, loop.is_resuming)
        return loader

    def _epoch_batches(self) -> int:
        """Training batches of an epoch for one process, in whole accumulation windows."""
        accumulation = self.trainer.accumulate_grad_batches if self.trainer else 1
        step_blocks = self.batch_size * accumulation * _DistributedEnv.detect().world_size
        require(
            self.train_blocks >= step_blocks, "batch_size", self.batch_size,
            f"an optimizer step takes {step_blocks} blocks and the training pool has {self.train_blocks}",
        )  # fmt: skip
        return self.train_blocks // step_blocks * accumulation

    def val_dataloader(self) -> TokenLoader:
        """Validation batches of one process, in file order; the last one may be smaller."""
        processes = _DistributedEnv.detect()
        require(
            self.val_blocks >= processes.world_size, "val_tokens", self.val_tokens,
            f"{self.val_blocks} blocks cannot be shared by {processes.world_size} processes",
        )  # fmt: skip
        share = validation_share(self.val_blocks, self.batch_size, processes.global_rank, processes.world_size)
        dataset = BlockDataset(self.corpus, "validation", shuffle=False, blocks=share, verify=self.verify)
        return TokenLoader(dataset.own(), self.batch_size, min(self.workers, 1))

    def test_dataloader(self) -> TokenLoader:
        """The validation batches: there is no third split."""
        return self.val_dataloader()

    def predict_dataloader(self) -> PlainBatches:
        """The validation batches."""
        return PlainBatches(self.val_dataloader())


class FineWeb(TokenData):
    """FineWeb as the growth study reads it; prepared by `python -m looplit prepare fineweb`.

    Arguments: `TokenData`.
    """

    prepared_by = "python -m looplit prepare fineweb"
    source = FINEWEB


class FineWebEdu(TokenData):
    """FineWeb-Edu as the growth study reads it; prepared by `python -m looplit prepare fineweb-edu`.

    Arguments: `TokenData`.
    """

    prepared_by = "python -m looplit prepare fineweb-edu"
    source = FINEWEB_EDU


class TextFolder(TokenData):
    """One's own text, from local files or the hub; prepared by `python -m looplit prepare PATH`.

    Arguments: `TokenData`.
    """

    prepared_by = "python -m looplit prepare PATH"


class StandardLibraryText(TokenData):
    """The embedded corpus: source text and documentation topics of the running Python. Needs no download.

    Prepared on first use, in seconds, and found again by later runs with the same settings and the same Python.

    Args:
        folder: Where prepared corpora are kept; a user cache folder by default.
        tokenizer: "bytes", "gpt2" or another encoding of tiktoken.
        context: Tokens the model sees; a block has one more.
        batch_size: Blocks per batch and process.
        workers: Processes that load training batches.
        seed: Of the permutations of the training blocks.
        pool_tokens: Train on the first so many tokens: floor(pool_tokens / (context + 1)) whole blocks. All by
            default.
        val_tokens: Validate on the first so many tokens at most, in whole blocks.
        verify: Check the hash of each chunk when a process first reads it.
        recut: Begin the training windows at another offset in every epoch.
        redeal: Let a run go on with another number of processes, batch size or workers, in a new epoch.
    """

    def __init__(
        self,
        folder: str | None = None,
        tokenizer: str = "bytes",
        context: int = 256,
        batch_size: int = 16,
        workers: int = 0,
        seed: int = 0,
        pool_tokens: int | None = None,
        val_tokens: int = 10_000_000,
        verify: bool = True,
        recut: bool = False,
        redeal: bool = False,
    ) -> None:
        root = str(user_cache_folder()) if folder is None else folder
        super().__init__(root, context, batch_size, workers, seed, pool_tokens, val_tokens, verify, recut, redeal)
        self.tokenizer = tokenizer
        self._text: Source = standard_library()

    @property
    def corpus_folder(self) -> str:
        """The folder of this corpus among the prepared ones, named by its settings' hash."""
        key = corpus_key(corpus_settings(self._text, self.tokenizer, self.context + 1))
        return str(Path(self.folder) / f"standard-library-{self.tokenizer}-{self.context}-{key}")

    def prepare_data(self) -> None:
        """Prepares the corpus unless it is there."""
        prepare_corpus(Path(self.corpus_folder), self._text, load_tokenizer(self.tokenizer), self.context + 1)
