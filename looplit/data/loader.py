"""A loader of whole batches whose position is a checkpoint: epoch and batch, nothing else."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from litdata import StreamingDataLoader
from torch import Tensor

from looplit.data.dataset import BlockDataset
from looplit.errors import InputError

DEALT = ("batch_size", "workers", "world_size")  # what the order of the blocks depends on besides the blocks


def collate(blocks: list[np.ndarray]) -> Tensor:
    """Blocks of shape (block,) as one tensor (batch, block) of the same integer type."""
    return torch.from_numpy(np.stack(blocks))


class PlainBatches:
    """A loader as a plain iterable: Lightning takes a DataLoader apart for `predict` and cannot put ours together."""

    def __init__(self, loader: TokenLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)


class TokenLoader(StreamingDataLoader):
    """Batches of blocks; what a worker process finds wrong with the corpus is one line here too.

    Args:
        dataset: Blocks.
        batch_size: Blocks per batch.
        workers: Worker processes.
    """

    def __init__(self, dataset: BlockDataset, batch_size: int, workers: int) -> None:
        super().__init__(
            dataset,
            batch_size=batch_size,
            num_workers=workers,
            collate_fn=collate,
            pin_memory=torch.cuda.is_available(),
        )

    def __iter__(self) -> Iterator[Tensor]:
        try:
            yield from super().__iter__()
        except InputError as error:
            # Torch leaves the processes of a failed loader to the garbage collector, which waits ten seconds for them.
            if (iterator := self._running()) is not None and self.num_workers > 0:
                iterator._shutdown_workers()
            line = str(error).strip().splitlines()[-1].rpartition("InputError: ")[2]  # a worker's comes with its story
            raise InputError(line) from None

    def _get_iterator(self) -> Any:
        iterator = super()._get_iterator()
        self._running = weakref.ref(iterator)
        return iterator


class ResumableLoader(TokenLoader):
    """Gives `batches` batches per epoch and resumes exactly, in any epoch and any number of times.

    LitData's own loader resumes exactly only to the end of the resumed epoch: Lightning never exhausts a loader that
    has a length, so the loader takes the next epoch for the rest of the resumed one. Here an epoch ends after
    `batches` batches, exhausted or not, and LitData's state is rebuilt from epoch and batch when it is loaded.

    Args:
        dataset: Training blocks.
        batches: Batches per epoch on this process; at most what LitData gives it.
        batch_size: Blocks per batch.
        workers: Worker processes.
        identity: What decides the order of the blocks besides the loader's own settings, say the corpus. A state saved
            under another identity is refused.
        taken: Batches that are taken from an epoch before the next one begins; all by default.

    Attributes:
        begins: Called before the first batch of every epoch.
    """

    def __init__(
        self,
        dataset: BlockDataset,
        batches: int,
        batch_size: int,
        workers: int,
        identity: Mapping[str, Any],
        taken: int | None = None,
    ) -> None:
        super().__init__(dataset, batch_size, workers)
        self.batches = batches
        self.taken = batches if taken is None else min(taken, batches)
        self.begins: Callable[[], None] | None = None
        self.restore = False
        self.identity = {
            **identity,
            "batch_size": batch_size,
            "workers": workers,
            "world_size": dataset.distributed_env.world_size,
            "seed": dataset.seed,
        }

    def __len__(self) -> int:
        return self.batches

    @property
    def batches_done(self) -> int:
        """Batches given in the current epoch."""
        done: int = self._num_samples_yielded_streaming // self.batch_size
        return done

    def __iter__(self) -> Iterator[Tensor]:
        if self.begins is not None:
            self.begins()
        remaining = self.batches - (self.batches_done if self.restore else 0)
        given = 0
        for batch in islice(super().__iter__(), remaining):
            self.restore = False  # the loaded position is used up; LitData clears it only when exhausted
            given += 1
            yield batch
        if given < remaining:
            raise RuntimeError(f"the corpus ended {remaining - given} batches before the end of the epoch")

    def state_dict(self) -> dict[str, Any]:
        """The position as plain numbers, and what it is valid for."""
        return {"epoch": self.current_epoch, "batches_done": self.batches_done, "identity": dict(self.identity)}

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        """Goes to a saved position; the next iteration continues there, or begins the next epoch if that one ended.

        Raises:
            InputError: The order of the blocks would not be the one that was saved.
        """
        for name in self.identity.keys() | obj["identity"].keys():
            now, saved = self.identity.get(name), obj["identity"].get(name)
            if now != saved:
                hint = "; data.redeal begins a new epoch instead" if name in DEALT else ""
                raise InputError(f"{name} = {now!r}: the checkpoint's place in the data was saved with {saved!r}{hint}")
        self._go_to(obj["epoch"], obj["batches_done"])

    def dealt_otherwise(self, obj: Mapping[str, Any]) -> bool:
        """Whether a saved position is one in the same blocks, dealt to other processes or in other batches."""
        now, saved = self.identity, obj["identity"]
        differ = {name for name in now.keys() | saved.keys() if now.get(name) != saved.get(name)}
        return bool(differ) and differ <= set(DEALT)

    def begin_after(self, epochs: int) -> None:
        """Makes the next iteration epoch number `epochs`, from 0."""
        self._go_to(epochs, self.batches)

    def _go_to(self, epoch: int, done: int) -> None:
        self.current_epoch = epoch
        self._num_samples_yielded_streaming = done * self.batch_size
        # Batches come from the workers in turn, so the last one's worker follows from their number.
        self._latest_worker_idx = (done - 1) % max(1, self.num_workers)
        self.dataset.current_epoch = epoch
        super().load_state_dict(super().state_dict())
        self.restore = 0 < done < self.taken
