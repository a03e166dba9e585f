"""LightningDataModules over prepared corpora. They work without a Trainer too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from litdata import StreamingDataLoader
from torch import Tensor

from looplit.data.corpus import Corpus, open_corpus, require_block
from looplit.data.dataset import BlockDataset, validation_share
from looplit.data.loader import ResumableLoader, collate
from looplit.data.prepare import corpus_key, prepare_corpus, shuffled, user_cache_folder
from looplit.data.stdlib import is_validation, standard_library_documents, standard_library_settings
from looplit.data.tokenizer import load_tokenizer
from looplit.errors import require

# Of the order of the documents. Apart from a run's seed, so that runs of several seeds read one corpus and one pool.
DOCUMENT_SEED = 0


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
        folder: A prepared corpus: a folder with a `corpus.json`.
        context: Tokens the model sees; a block has one more. Must be what the corpus was cut for.
        batch_size: Blocks per batch and process.
        workers: Processes that load training batches (validation uses one of them at most, to keep the order).
        seed: Of the permutations of the training blocks.
        pool_tokens: Train on the first so many tokens: floor(pool_tokens / (context + 1)) whole blocks. All by
            default.
        val_tokens: Validate on the first so many tokens at most, in whole blocks.
    """

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
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("context", context, 1), ("batch_size", batch_size, 1), ("workers", workers, 0), ("seed", seed, 0),
            ("val_tokens", val_tokens, context + 1),
            ("pool_tokens", context + 1 if pool_tokens is None else pool_tokens, context + 1),
        ):  # fmt: skip
            require(value >= least, name, value, f"must be at least {least}")
        self.folder = Path(folder).expanduser()
        self.context = context
        self.batch_size = batch_size
        self.workers = workers
        self.seed = seed
        self.pool_tokens = pool_tokens
        self.val_tokens = val_tokens
        self._corpus: Corpus | None = None

    @property
    def corpus_folder(self) -> Path:
        """Where the prepared corpus lies."""
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
        corpus = open_corpus(self.corpus_folder)
        require_block(corpus, self.context)
        self._corpus = corpus
        self.vocabulary = corpus.vocabulary
        self.largest_token = max(split.largest_token for split in corpus.splits.values())
        self.token_bytes = torch.from_numpy(corpus.load_token_bytes())
        stored = corpus.splits["train"].blocks
        require(
            self.train_blocks <= stored, "pool_tokens", self.pool_tokens,
            f"the corpus has {stored * corpus.block} tokens in whole blocks",
        )  # fmt: skip

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

    def train_dataloader(self) -> ResumableLoader:
        """Training batches of one process: as many on every process, in whole accumulation windows."""
        # Built here and not in setup: only now does LitData see the processes of a distributed run.
        dataset = BlockDataset(self.corpus, "train", shuffle=True, seed=self.seed)
        if self.train_blocks < self.corpus.splits["train"].blocks:
            dataset = dataset.subset(slice(0, self.train_blocks))
        accumulation = self.trainer.accumulate_grad_batches if self.trainer else 1
        step_blocks = self.batch_size * accumulation * dataset.distributed_env.world_size
        require(
            self.train_blocks >= step_blocks, "batch_size", self.batch_size,
            f"an optimizer step takes {step_blocks} blocks and the training pool has {self.train_blocks}",
        )  # fmt: skip
        identity = {"corpus": self.corpus.splits["train"].fingerprint, "blocks": self.train_blocks}
        batches = self.train_blocks // step_blocks * accumulation
        return ResumableLoader(dataset, batches, self.batch_size, self.workers, identity)

    def val_dataloader(self) -> StreamingDataLoader:
        """Validation batches of one process, in file order; the last one may be smaller."""
        dataset = BlockDataset(self.corpus, "validation", shuffle=False)
        processes = dataset.distributed_env
        require(
            self.val_blocks >= processes.world_size, "val_tokens", self.val_tokens,
            f"{self.val_blocks} blocks cannot be shared by {processes.world_size} processes",
        )  # fmt: skip
        share = validation_share(self.val_blocks, self.batch_size, processes.global_rank, processes.world_size)
        return StreamingDataLoader(
            dataset.own(share),
            batch_size=self.batch_size,
            num_workers=min(self.workers, 1),
            collate_fn=collate,
            pin_memory=torch.cuda.is_available(),
        )

    def test_dataloader(self) -> StreamingDataLoader:
        """The validation batches: there is no third split."""
        return self.val_dataloader()

    def predict_dataloader(self) -> StreamingDataLoader:
        """The validation batches."""
        return self.val_dataloader()


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
    ) -> None:
        root = str(user_cache_folder()) if folder is None else folder
        super().__init__(root, context, batch_size, workers, seed, pool_tokens, val_tokens)
        self.tokenizer = tokenizer

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the prepared corpus."""
        return {
            **standard_library_settings(),
            "tokenizer": self.tokenizer,
            "block": self.context + 1,
            "document_seed": DOCUMENT_SEED,
        }

    @property
    def corpus_folder(self) -> Path:
        """The folder of this corpus among the prepared ones, named by its settings' hash."""
        return self.folder / f"standard-library-{self.tokenizer}-{self.context}-{corpus_key(self.settings)}"

    def prepare_data(self) -> None:
        """Prepares the corpus unless it is there."""
        tokenizer = load_tokenizer(self.tokenizer)
        prepare_corpus(self.corpus_folder, self._splits, tokenizer, self.context + 1, self.settings)

    @staticmethod
    def _splits() -> dict[str, list[str]]:
        documents = list(standard_library_documents())
        training = [document.text for document in documents if not is_validation(document.name)]
        validation = [document.text for document in documents if is_validation(document.name)]
        return {"train": shuffled(training, DOCUMENT_SEED), "validation": validation}
