"""Where a command runs its model."""

from __future__ import annotations

import torch

from looplit.errors import InputError


def chosen_device(name: str | None) -> torch.device:
    """The device of that name; without one the GPU where there is one, else the CPU.

    Raises:
        InputError: There is no such device.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros((), device=device).item()
    except (RuntimeError, AssertionError) as error:  # torch's words for a device that holds no numbers
        raise InputError(f"device = {name!r}: {str(error).splitlines()[0]}") from None
    return device
