"""Ends a process of torchrun when the agent that started it is gone."""

from __future__ import annotations

import os
import sys
import threading
import time

_LOOK_EVERY_SECONDS = 1.0


def end_with_agent() -> None:
    """Watches, in a thread, that the parent lives, where torchrun's agent is the parent; otherwise does nothing.

    A killed agent cannot end its processes. They would train on, and so would all others, until someone saw it. The
    end of these gives the others a lost connection. An agent that is asked to end (SIGTERM) ends its processes itself.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(agent: int) -> None:
    while os.getppid() == agent:
        time.sleep(_LOOK_EVERY_SECONDS)
    sys.stderr.write(f"looplit: process {os.environ.get('RANK')} ends: its torchrun agent is gone\n")
    os._exit(1)  # the main thread may wait for another process in a call that no exception reaches
