"""Tokens per second of preparation, beside plain single-process tiktoken on the same text.

    python benchmarks/data_preparation.py --tokenizer gpt2 --workers 2

The text is the embedded corpus, several times over, as parquet files with the hub's FineWeb columns. Both sides read
these files; plain tiktoken encodes document by document with `encode_ordinary` and keeps the tokens in memory, while
preparation also shuffles, cuts, writes, hashes and starts its processes. CPU seconds are printed too: where other
programs want the cores, they tell more than the clock.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

# Light modules only: each tokenizing process imports this file.
import looplit.data
from looplit.data.stdlib import standard_library_documents


def write_shards(folder: Path, shards: int, copies: int) -> None:
    """Writes the embedded corpus `copies` times into each of `shards` files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [document.text for document in standard_library_documents()] * copies
    table = pa.table({"text": texts, "id": [str(number) for number in range(len(texts))]})
    for number in range(shards):
        pq.write_table(table, folder / f"{number:03}_00000.parquet", row_group_size=1000)


def plain(folder: Path, tokenizer_name: str) -> tuple[int, float]:
    """Tokens, and seconds that plain tiktoken takes for them."""
    import pyarrow.parquet as pq

    tokenizer = looplit.data.load_tokenizer(tokenizer_name)
    tokens = 0
    start = time.perf_counter()
    for path in sorted(folder.iterdir()):
        for text in pq.read_table(path, columns=["text"]).column(0).to_pylist():
            tokens += 1 + len(tokenizer.encode_ordinary(text))
    return tokens, time.perf_counter() - start


def prepared(folder: Path, held_out: Path, out: Path, tokenizer_name: str, workers: int) -> tuple[int, float]:
    """Training tokens, and seconds that their preparation takes."""
    from looplit.data.sources import local_files

    source, tokenizer = local_files(folder, validation=held_out), looplit.data.load_tokenizer(tokenizer_name)
    prepare = looplit.data.prepare_corpus  # imports torch, which is not part of the measurement
    start = time.perf_counter()
    corpus = prepare(out, source, tokenizer, 2049, workers=workers)
    return corpus.splits["train"].tokens, time.perf_counter() - start


def cpu_s() -> tuple[float, float]:
    """CPU seconds so far of this process, and of its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return used[0].ru_utime + used[0].ru_stime, used[1].ru_utime + used[1].ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", default="gpt2")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shards", type=int, default=3)
    parser.add_argument("--copies", type=int, default=1, help="of the embedded corpus in each shard")
    parser.add_argument("--repeats", type=int, default=3, help="of each side, in turn; the best counts")
    args = parser.parse_args()
    rates: dict[str, list[float]] = {"plain": [], "one": [], "several": []}
    used: dict[str, list[tuple[float, float]]] = {name: [] for name in rates}
    with tempfile.TemporaryDirectory() as root:
        folder, held_out = Path(root) / "in", Path(root) / "held_out.txt"
        folder.mkdir()
        write_shards(folder, args.shards, args.copies)
        held_out.write_text("held out " * 10_000)
        for repeat in range(args.repeats):
            for name, workers in (("plain", 0), ("one", 1), ("several", args.workers)):
                before = cpu_s()
                if workers:
                    out = Path(root) / f"{name}{repeat}"
                    tokens, seconds = prepared(folder, held_out, out, args.tokenizer, workers)
                else:
                    tokens, seconds = plain(folder, args.tokenizer)
                rates[name].append(tokens / seconds)
                used[name].append((cpu_s()[0] - before[0], cpu_s()[1] - before[1]))
    best = {name: max(values) for name, values in rates.items()}
    print(json.dumps({
        "tokens": tokens,
        "workers": args.workers,
        "plain_tokens_per_second": round(best["plain"]),
        "prepare_1_worker_tokens_per_second": round(best["one"]),
        "prepare_tokens_per_second": round(best["several"]),
        "times_plain": round(best["several"] / best["plain"], 2),
        "plain_cpu_s": round(min(used["plain"])[0], 2),
        "prepare_main_process_cpu_s": round(min(used["several"])[0], 2),
        "prepare_workers_cpu_s": round(min(used["several"])[1], 2),
    }, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
