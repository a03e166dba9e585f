"""Tokens per second of the training loader, for some numbers of worker processes.

    python benchmarks/data_loading.py --context 2048 --batch_size 8 --workers 0 2

Random tokens, as uint16 in chunks of the default size; each run reads one epoch from the page cache and is timed from
the first batch on. With --demo the shape is that of configs/demo.yaml, whose training consumes the tokens per second
that its run prints as `speed`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from looplit.data import Source, TokenData, load_tokenizer, prepare_corpus
from looplit.data.shards import Shard
from looplit.data.sources import Shards, texts_shard


def random_source(tokens: int) -> Source:
    """Documents of 1,000 random letters, `tokens` of the bytes tokenizer in all."""
    letters = np.random.default_rng(0).integers(ord("a"), ord("z") + 1, tokens, dtype=np.uint8)

    def texts() -> Iterator[str]:
        for start in range(0, tokens, 1000):
            yield letters[start : start + 1000].tobytes().decode()

    shard = Shard("random", lambda: pa.array(texts(), pa.large_string()))
    return Source({"source": "random"}, lambda: Shards([shard], [texts_shard("held out", ["x" * 10_000])]))


def rate(folder: Path, context: int, batch_size: int, workers: int, verify: bool) -> float:
    """Tokens per second over an epoch, without the time to the first batch."""
    data = TokenData(str(folder), context=context, batch_size=batch_size, workers=workers, verify=verify)
    data.setup()
    batches = iter(data.train_dataloader())
    tokens = next(batches).numel()
    start = time.perf_counter()
    for batch in batches:
        tokens += batch.numel()
    return tokens / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--tokens", type=int, default=20_000_000)
    parser.add_argument("--repeats", type=int, default=3, help="the best counts")
    parser.add_argument("--demo", action="store_true", help="context 256 and batch size 16")
    args = parser.parse_args()
    context, batch_size = (256, 16) if args.demo else (args.context, args.batch_size)
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "corpus"
        prepare_corpus(folder, random_source(args.tokens), load_tokenizer("bytes"), context + 1)
        rates = {
            f"{workers} workers, verify {verify}": round(
                max(rate(folder, context, batch_size, workers, verify) for _ in range(args.repeats))
            )
            for workers in args.workers
            for verify in (True, False)
        }
    print(json.dumps({"context": context, "batch_size": batch_size, "tokens_per_second": rates}, indent=1))


if __name__ == "__main__":
    main()
