"""What a run has processed, and how fast: tokens, FLOPs and optimization time."""

from __future__ import annotations

import time
from typing import Any

import torch

WARMUP_STEPS = 5  # optimizer steps after a start that no time is taken of: compilation, caches, allocator


class RunMeter:
    """Counts tokens and FLOPs over the whole run, and times optimization only.

    The clock runs from a batch's start until something other than optimization begins (validation, a checkpoint, the
    end), and starts again with the next batch; the first `WARMUP_STEPS` optimizer steps of a process are left out.
    Tokens and FLOPs travel with checkpoints, and so do the time and the largest K that was trained.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.flops = 0
        self.most_passes = 0
        self.train_seconds = 0.0
        self.timed_tokens = 0
        self._steps_here = 0
        self._started: float | None = None
        self._marked = (0, 0.0)

    def batch_started(self) -> None:
        """Starts the clock, warm-up steps aside."""
        if self._started is None and self._steps_here >= WARMUP_STEPS:
            self._started = time.perf_counter()

    def batch_processed(self, tokens: int, flops: int, passes: int) -> None:
        """Adds one micro-batch on all devices, run at `passes`."""
        self.most_passes = max(self.most_passes, passes)
        self.tokens += tokens
        self.flops += flops
        if self._started is not None:
            self.timed_tokens += tokens

    def step_ended(self) -> None:
        """Counts one optimizer step."""
        self._steps_here += 1

    def pause(self) -> None:
        """Stops the clock; work queued on an accelerator is waited for and counted."""
        if self._started is not None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.train_seconds += time.perf_counter() - self._started
            self._started = None

    def seconds(self) -> float:
        """Optimization time so far, in seconds."""
        return self.train_seconds + (time.perf_counter() - self._started if self._started is not None else 0.0)

    def tokens_per_second(self) -> float | None:
        """Mean over the timed part of the run; None before anything was timed."""
        seconds = self.seconds()
        return self.timed_tokens / seconds if seconds > 0 and self.timed_tokens else None

    def recent_tokens_per_second(self) -> float | None:
        """Mean since the last call; None before anything was timed."""
        (tokens, seconds), now = self._marked, (self.timed_tokens, self.seconds())
        self._marked = now
        return (now[0] - tokens) / (now[1] - seconds) if now[1] > seconds and now[0] > tokens else None

    def state_dict(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "flops": self.flops,
            "most_passes": self.most_passes,
            "train_seconds": self.seconds(),
            "timed_tokens": self.timed_tokens,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tokens, self.flops = state["tokens"], state["flops"]
        self.most_passes = state.get("most_passes", 0)
        self.train_seconds, self.timed_tokens = state["train_seconds"], state["timed_tokens"]
        self._marked = (self.timed_tokens, self.train_seconds)
