"""A preparation that is stopped by a signal: one line, the exit code, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# The command itself; only its reading of the text waits forever, once both tokenizing processes are started.
COMMAND = """if True:
    import signal, sys, time
    import looplit.data.prepare as prepare
    from looplit.__main__ import main
    real = prepare._batches
    def waiting(shards, done, seed):
        for number, batch in enumerate(real(shards, done, seed)):
            if number == 4:
                print("waiting", flush=True)
                time.sleep(600)
            yield batch
    prepare._batches = waiting
    prepare.BATCH_BYTES = 100
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs without it
    sys.exit(main(["prepare", *sys.argv[1:], "--tokenizer", "bytes", "--context", "8", "--workers", "2"]))
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_nothing_lives_on_after_a_signal(root: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    (tmp_path / "text.jsonl").write_text("".join(f'{{"text": "{line:099}"}}\n' for line in range(1000)))
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(tmp_path / "text.jsonl"), "--folder", str(tmp_path / "corpus"), "--quiet"],
        cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    # It returns when nobody holds the pipes any more: the tokenizing processes inherited them.
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    if number != signal.SIGKILL:
        line = f"looplit: prepare was stopped by {number.name}; the same command with --resume continues it\n"
        assert errors == line
