"""The training loader: epochs are permutations, shares are disjoint, and a resume equals no interruption."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from torch import Tensor

from looplit.data import Corpus, TokenData
from looplit.data.loader import ResumableLoader
from looplit.errors import InputError

Numbered = Callable[..., Corpus]
Numbers = Callable[[Tensor], list[int]]


def make_loader(corpus: Corpus, **arguments: Any) -> ResumableLoader:
    data = TokenData(str(corpus.folder), **{"context": 4, "batch_size": 4, "seed": 7, **arguments})
    data.setup("fit")
    return data.train_dataloader()


def endless(loader: ResumableLoader) -> Iterator[Tensor]:
    """Epoch after epoch, each left without being exhausted, as Lightning leaves them."""
    while True:
        given = 0
        for batch in islice(iter(loader), len(loader)):
            given += 1
            yield batch
        assert given, "an epoch without a batch"


@pytest.mark.parametrize(("blocks", "workers"), [(100, 0), (101, 0), (101, 1), (101, 3)])
def test_epochs_are_different_permutations(
    numbered_once: Numbered, numbers: Numbers, workers: int, blocks: int
) -> None:
    corpus = numbered_once(blocks)
    loader = make_loader(corpus, workers=workers)
    epochs = [[number for batch in loader for number in numbers(batch)] for _ in range(3)]
    assert len(loader) == 25
    for epoch in epochs:
        assert len(epoch) == len(set(epoch)) == 100
        assert set(epoch) <= set(range(blocks))
        assert epoch != sorted(epoch)
    assert epochs[0] != epochs[1] != epochs[2]
    again = make_loader(corpus, workers=workers)
    assert [[number for batch in again for number in numbers(batch)] for _ in range(3)] == epochs


def test_another_seed_is_another_order(numbered_once: Numbered, numbers: Numbers) -> None:
    corpus = numbered_once()
    orders = [[numbers(batch) for batch in make_loader(corpus, seed=seed)] for seed in (1, 2)]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("chunk_blocks", [16, 1000])
def test_what_is_left_out_changes_with_the_epoch(
    numbered_once: Numbered, numbers: Numbers, workers: int, chunk_blocks: int
) -> None:
    loader = make_loader(numbered_once(103, chunk_blocks=chunk_blocks), workers=workers)
    left_out = [set(range(103)) - {number for batch in loader for number in numbers(batch)} for _ in range(6)]
    assert all(len(blocks) == 3 for blocks in left_out)
    # By chance alone two epochs of six agree with probability below 1e-4.
    assert len({frozenset(blocks) for blocks in left_out}) == 6


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_processes_share_an_epoch(
    numbered_once: Numbered, numbers: Numbers, monkeypatch: pytest.MonkeyPatch, world_size: int, workers: int
) -> None:
    corpus = numbered_once(101)
    monkeypatch.setenv("WORLD_SIZE", str(world_size))
    epochs: list[list[int]] = [[], []]
    for rank in range(world_size):
        monkeypatch.setenv("GLOBAL_RANK", str(rank))
        loader = make_loader(corpus, workers=workers)
        assert len(loader) == 101 // (4 * world_size)
        for epoch in epochs:
            batches = [numbers(batch) for batch in loader]
            assert [len(batch) for batch in batches] == [4] * len(loader)
            epoch.extend(number for batch in batches for number in batch)
    for epoch in epochs:
        assert len(epoch) == len(set(epoch)) == 101 // (4 * world_size) * 4 * world_size
    assert set(epochs[0]) != set(epochs[1])


STOPS = [(2,), (22,), (25,), (26,), (37,), (50,), (3, 5), (3, 28), (25, 50), (30, 31, 49)]


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(
    ("workers", "stops"), [*((0, stops) for stops in STOPS), (2, (25,)), (2, (30, 31, 49))], ids=str
)
def test_resume_equals_no_interruption(
    numbered_once: Numbered,
    numbers: Numbers,
    monkeypatch: pytest.MonkeyPatch,
    world_size: int,
    workers: int,
    stops: tuple[int, ...],
) -> None:
    """Three epochs of 25 batches (12 on each of two processes) straight, and with stops after so many batches."""
    corpus = numbered_once(101)
    monkeypatch.setenv("WORLD_SIZE", str(world_size))
    monkeypatch.setenv("GLOBAL_RANK", str(world_size - 1))
    straight = [numbers(batch) for batch in islice(endless(make_loader(corpus, workers=workers)), 75)]
    resumed: list[list[int]] = []
    state = None
    for stop in (*stops, 75):
        loader = make_loader(corpus, workers=workers)
        if state is not None:
            loader.load_state_dict(pickle.loads(state))
            assert loader.state_dict() == pickle.loads(state)
        resumed.extend(numbers(batch) for batch in islice(endless(loader), stop - len(resumed)))
        state = pickle.dumps(loader.state_dict())
    assert resumed == straight


def test_an_iterator_that_is_never_used_changes_nothing(numbered_once: Numbered, numbers: Numbers) -> None:
    corpus = numbered_once()
    straight = [numbers(batch) for batch in islice(endless(make_loader(corpus)), 40)]
    first = make_loader(corpus)
    for _ in islice(endless(first), 10):
        pass
    second = make_loader(corpus)
    second.load_state_dict(first.state_dict())
    iter(second)
    assert [numbers(batch) for batch in islice(endless(second), 30)] == straight[10:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_used_loader_goes_back(numbered_once: Numbered, numbers: Numbers, workers: int) -> None:
    loader = make_loader(numbered_once(), workers=workers)
    batches = endless(loader)
    for _ in islice(batches, 31):
        pass
    state = loader.state_dict()
    straight = [numbers(batch) for batch in islice(batches, 44)]
    for _ in range(2):
        loader.load_state_dict(state)
        assert [numbers(batch) for batch in islice(endless(loader), 44)] == straight


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"seed": 8}, "seed = 8: the checkpoint's place in the data was saved with 7"),
        ({"batch_size": 2}, "batch_size = 2: .* saved with 4"),
        ({"workers": 2}, "workers = 2: .* saved with 0"),
        ({"pool_tokens": 200}, "blocks = 40: .* saved with 100"),
    ],
)
def test_another_order_is_refused(numbered_once: Numbered, changed: dict[str, int], line: str) -> None:
    corpus = numbered_once()
    state = make_loader(corpus).state_dict()
    with pytest.raises(InputError, match=line):
        make_loader(corpus, **changed).load_state_dict(state)


def test_another_corpus_is_refused_and_a_moved_one_is_not(numbered: Numbered, numbers: Numbers) -> None:
    one = numbered()
    loader = make_loader(one)
    batches = [numbers(batch) for batch in islice(loader, 3)]
    moved = make_loader(numbered(name="moved"))
    moved.load_state_dict(loader.state_dict())
    assert numbers(next(iter(moved))) not in batches
    with pytest.raises(InputError, match="corpus = "):
        make_loader(numbered(chunk_blocks=20, name="other")).load_state_dict(loader.state_dict())


def offsets_of(epoch: list[list[int]]) -> set[int]:
    """Where in its window each `<|endoftext|>` is: every stored block begins with one."""
    return {window.index(256) for window in epoch}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pool_tokens", [None, 41 * 5])
def test_recut_windows_hold_each_token_once(numbered_once: Numbered, workers: int, pool_tokens: int | None) -> None:
    blocks = 100 if pool_tokens is None else 41
    corpus = numbered_once(100)
    loader = make_loader(corpus, workers=workers, batch_size=1, recut=True, pool_tokens=pool_tokens)
    plain = make_loader(corpus, batch_size=1, pool_tokens=pool_tokens)
    expected = sorted(token for batch in plain for token in batch.flatten().tolist())
    offsets = []
    for _ in range(6):
        epoch = [batch[0].tolist() for batch in loader]
        assert len(epoch) == len(loader) == blocks
        assert sorted(token for window in epoch for token in window) == expected
        (offset,) = offsets_of(epoch)  # the same for all windows of an epoch
        offsets.append(offset)
    assert len({*offsets}) > 1  # six draws of five agree with probability 3e-4, and the seed is fixed


def test_recut_windows_join_neighbours(numbered_once: Numbered) -> None:
    """A window goes on in the next block of its chunk, the last one of the pool's part in the first one."""
    loader = make_loader(numbered_once(), batch_size=1, recut=True, pool_tokens=41 * 5)
    following = {f"{n:04}": f"{n + 1:04}" for n in range(41)} | {"0015": "0000", "0031": "0016", "0040": "0032"}
    for _ in range(4):
        for batch in loader:
            window = batch[0].tolist()
            at = window.index(256)
            if at in (2, 3):
                before, after = bytes(window[:at]).decode(), bytes(window[at + 1 :]).decode()
                assert any(block.endswith(before) and following[block].startswith(after) for block in following)


@pytest.mark.parametrize("stops", [(22,), (25,), (30, 31, 49)], ids=str)
def test_recut_windows_resume_exactly(numbered_once: Numbered, stops: tuple[int, ...]) -> None:
    corpus = numbered_once(101)
    straight = [batch.tolist() for batch in islice(endless(make_loader(corpus, recut=True)), 75)]
    resumed: list[list[list[int]]] = []
    state = None
    for stop in (*stops, 75):
        loader = make_loader(corpus, recut=True)
        if state is not None:
            loader.load_state_dict(state)
        resumed.extend(batch.tolist() for batch in islice(endless(loader), stop - len(resumed)))
        state = pickle.loads(pickle.dumps(loader.state_dict()))
    assert resumed == straight
    with pytest.raises(InputError, match="recut = False: .* saved with True"):
        make_loader(corpus).load_state_dict(loader.state_dict())
