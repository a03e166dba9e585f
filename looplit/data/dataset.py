"""Blocks of a prepared split through LitData, in an order that depends on the seed and the epoch alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import litdata
import numpy as np
from litdata import StreamingDataset
from litdata.streaming.cache import Cache
from litdata.streaming.resolver import Dir
from litdata.streaming.shuffle import FullShuffle, NoShuffle, Shuffle
from litdata.utilities.env import _DistributedEnv

from looplit.data.corpus import Corpus, StoredFile


class WholeChunkShuffle(FullShuffle):
    """Permutes the chunks, and all blocks within a chunk, anew in every epoch.

    LitData's own shuffle permutes each worker's share of a chunk, the first blocks to the first worker, so that the
    blocks left over by whole batches are a chunk's last ones in every epoch. Here the shares are cut from the
    permuted chunk: what is left over is drawn anew in every epoch.
    """

    def __call__(self, array: np.ndarray, num_chunks: int, current_epoch: int, chunk_index: int) -> list[int]:
        interval = self.cache.get_chunk_intervals()[chunk_index]
        first, last = interval[1], interval[2]
        order = np.random.RandomState([self.seed, num_chunks, current_epoch, chunk_index]).permutation(last - first)
        shuffled: list[int] = (first + order[np.asarray(array, dtype=np.int64) - first]).tolist()
        return shuffled


class TokensLoader(litdata.TokensLoader):
    """Reads blocks, checks each chunk when it is first read, and cuts windows anew where it is told to.

    It has the name of LitData's own, which LitData demands of the loader of such an index.

    Args:
        block: Tokens per block.
        folder: Of the corpus.
        files: The split's chunks by file name, to check them; none of them is checked if it is empty.
    """

    def __init__(self, block: int, folder: Path, files: dict[str, StoredFile]) -> None:
        super().__init__(block_size=block)
        self.block = block
        self.folder = folder
        self.unchecked = files
        self.offset = 0  # tokens by which every window begins later than its block

    def load_item_from_chunk(
        self, index: int, chunk_index: int, chunk_filepath: str, begin: int, filesize_bytes: int
    ) -> np.ndarray:
        """The window that begins `offset` tokens after the start of block `index`.

        The blocks of a chunk that are in use form a ring: the last window goes on with the tokens of the first block
        that no other window has. So each token comes once, whatever the offset, and none from outside of the pool.
        """
        self._check(chunk_index, chunk_filepath, filesize_bytes)
        if self.offset == 0:
            return self._block(index, chunk_index, chunk_filepath, begin, filesize_bytes)
        first, end = (begin + edge for edge in self.region_of_interest[int(chunk_index)])
        following = index + 1 if index + 1 < end else first
        parts = [
            self._block(each, chunk_index, chunk_filepath, begin, filesize_bytes) for each in (index, following)
        ]  # fmt: skip
        return np.concatenate((parts[0][self.offset :], parts[1][: self.offset]))

    def _block(self, index: int, *place: Any) -> np.ndarray:
        block: np.ndarray = super().load_item_from_chunk(index, *place)
        return block

    def _check(self, chunk_index: int, path: str, size: int) -> None:
        file = self.unchecked.get(Path(path).name)
        if file is not None:
            if self._force_download_queue is not None:  # a remote chunk may be on its way
                self._wait_until_chunk_ready(chunk_index, path, size)
            file.check_content(self.folder)
            del self.unchecked[Path(path).name]


class BlockDataset(StreamingDataset):
    """Blocks of a split as arrays of shape (block,) in the stored dtype.

    The processes of a distributed run share the blocks among them, in equal numbers of whole batches.

    Args:
        corpus: The prepared corpus.
        split: "train" or "validation".
        shuffle: Whether every epoch is a new permutation; otherwise file order.
        seed: Of the permutations and offsets.
        blocks: The blocks to give; all by default.
        verify: Whether each chunk's hash is checked when a process first reads it.
        recut: Whether windows begin at another offset from the blocks in every epoch, drawn by `seed`.
    """

    def __init__(
        self,
        corpus: Corpus,
        split: str,
        shuffle: bool,
        seed: int = 0,
        blocks: slice | None = None,
        verify: bool = True,
        recut: bool = False,
    ) -> None:
        address = None if corpus.address is None else f"{corpus.address.rstrip('/')}/{split}"
        files = {Path(file.path).name: file for file in corpus.splits[split].chunks} if verify else {}
        super().__init__(
            # Both given, so that LitData never chooses a cache folder, or reads a special meaning into the path.
            Dir(path=str(corpus.folder.absolute() / split), url=address),
            item_loader=TokensLoader(corpus.block, corpus.folder, files),
            shuffle=shuffle,
            drop_last=True,
            seed=seed,
        )
        self.subsampled_files: list[str]
        self.region_of_interest: list[tuple[int, int]]
        self.recut = recut
        if blocks is not None:
            self._keep(blocks)

    def own(self) -> BlockDataset:
        """This dataset with all its blocks for this process, a last smaller batch included."""
        self.distributed_env = _DistributedEnv(world_size=1, global_rank=0, num_nodes=1)
        self.set_drop_last(False)
        return self

    def __iter__(self) -> BlockDataset:
        super().__iter__()
        if self.recut:
            draw = np.random.RandomState([self.seed, self.current_epoch])
            self.item_loader.offset = int(draw.randint(self.item_loader.block))
        return self

    def _keep(self, blocks: slice) -> None:
        """Narrows the dataset to consecutive blocks (LitData's `subset` goes through them one by one)."""
        kept: list[tuple[str, tuple[int, int]]] = []
        start = 0
        for name, (first, end) in zip(self.subsampled_files, self.region_of_interest, strict=True):
            low, high = max(blocks.start - start, 0), min(blocks.stop - start, end - first)
            if low < high:
                kept.append((name, (first + low, first + high)))
            start += end - first
        self.subsampled_files = [name for name, _ in kept]
        self.region_of_interest = [region for _, region in kept]

    def _create_shuffler(self, cache: Cache) -> Shuffle:
        # LitData chooses the shuffle by the file system; the order must not depend on where the corpus lies.
        kind = WholeChunkShuffle if self.shuffle else NoShuffle
        return kind(cache, self.seed, self.drop_last)


def validation_share(blocks: int, batch_size: int, rank: int, world_size: int) -> slice:
    """The blocks that process `rank` validates on: consecutive shares that differ by one block at most.

    All processes must see equally many batches, or one of them waits forever. Only where a share of one block more
    would need one batch more, the last blocks (fewer than `world_size`) are left out.

    >>> [validation_share(11, 4, rank, 2) for rank in range(2)]
    [slice(0, 6, None), slice(6, 11, None)]
    >>> [validation_share(9, 4, rank, 2) for rank in range(2)]
    [slice(0, 4, None), slice(4, 8, None)]
    """
    smallest, rest = divmod(blocks, world_size)
    if smallest % batch_size == 0:
        rest = 0
    start = rank * smallest + min(rank, rest)
    return slice(start, start + smallest + (rank < rest))
