"""Blocks of a prepared split through LitData, in an order that depends on the seed and the epoch alone."""

from __future__ import annotations

import numpy as np
from litdata import StreamingDataset, TokensLoader
from litdata.streaming.cache import Cache
from litdata.streaming.shuffle import FullShuffle, NoShuffle, Shuffle
from litdata.utilities.env import _DistributedEnv

from looplit.data.corpus import Corpus


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


class BlockDataset(StreamingDataset):
    """Blocks of a split as arrays of shape (block,) in the stored dtype.

    The processes of a distributed run share the blocks among them, in equal numbers of whole batches.

    Args:
        corpus: The prepared corpus.
        split: "train" or "validation".
        shuffle: Whether every epoch is a new permutation; otherwise file order.
        seed: Of the permutations.
    """

    def __init__(self, corpus: Corpus, split: str, shuffle: bool, seed: int = 0) -> None:
        super().__init__(
            str(corpus.folder / split),
            item_loader=TokensLoader(block_size=corpus.block),
            shuffle=shuffle,
            drop_last=True,
            seed=seed,
        )

    def own(self, blocks: slice) -> BlockDataset:
        """A dataset of these blocks alone, all of them for this process, a last smaller batch included."""
        dataset: BlockDataset = self.subset(blocks)
        dataset.distributed_env = _DistributedEnv(world_size=1, global_rank=0, num_nodes=1)
        dataset.set_drop_last(False)
        return dataset

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
