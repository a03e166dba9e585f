"""KL effective depth during a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_args

import lightning as L
from torch import Tensor

from looplit.callbacks.sampled import SampledValidation, sum_over_processes
from looplit.callbacks.tensorboard import add_figure
from looplit.errors import InputError
from looplit.eval.lens import (
    THRESHOLD,
    Direction,
    LensResult,
    ResidualStream,
    Stage,
    check_reading,
    is_readable,
    lens,
    site_label,
    stream_of,
)
from looplit.model.backbone import Site


class EffectiveDepth(SampledValidation):
    """Reads the logit lens on validation: effective depth, KL and agreement of every executed block.

    Logs `depth/effective_depth`, `depth_kl/…` and `depth_agreement/…` for every block, e.g. `depth_kl/2_core_3.1` for
    the core's pass 3, block 1 (a block keeps its tag when the model grows), and the figure `depth/lens`. Costs two
    forwards and, per executed block, two decodings of `tokens` tokens; nothing between its calls.

    Reads any LightningModule that has a `Backbone` as `backbone`, that has the methods `run` and `decode` of
    `looplit.eval.lens.ResidualStream` itself, or for which `stream` says where its residual stream is. Batches are
    windows or pairs, as LoopLit's modules take them.

    Args:
        every_n_validations: 1 for every validation. One after the run's last step is always read.
        tokens: Most tokens to read, from the beginning of the validation data.
        threshold: Of the effective depth, in nats.
        direction: "final_decoded" for KL(final ‖ decoded), "decoded_final" for the other.
        stream: From the module to its residual stream, as a rule a `looplit.eval.lens.HookedStream`.

    Raises:
        InputError: A value out of range; before training, a module whose residual stream nobody has named.

    Example:
        >>> from looplit.callbacks import EffectiveDepth
        >>> from looplit.eval.lens import HookedStream
        >>> callback = EffectiveDepth(every_n_validations=4, tokens=16_384)
        >>> mine = EffectiveDepth(stream=lambda m: HookedStream(m.net, [("prelude", m.net.blocks)], m.net.decode))
    """

    def __init__(
        self,
        every_n_validations: int = 1,
        tokens: int = 65_536,
        threshold: float = THRESHOLD,
        direction: Direction = "final_decoded",
        stream: Callable[[L.LightningModule], ResidualStream] | None = None,
    ) -> None:
        super().__init__(tokens, every_n_validations)
        check_reading(threshold, direction)
        self.threshold = threshold
        self.direction = direction
        self.stream = stream
        self.result: LensResult | None = None
        """The last reading."""

    @property
    def run_results(self) -> dict[str, Any]:
        """What `result.json` says about it."""
        return {} if self.result is None else {"effective_depth": self.result.effective_depth}

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._stream_of(pl_module)

    def measure(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batches: Sequence[tuple[Tensor, Tensor]]
    ) -> None:
        reduce = partial(sum_over_processes, trainer)
        stream = self._stream_of(pl_module)
        result = lens(stream, batches, threshold=self.threshold, direction=self.direction, reduce=reduce)
        self.result = result
        pl_module.log("depth/effective_depth", float(result.effective_depth))
        for i, site in enumerate(result.sites):
            place = place_tag(site)
            pl_module.log(f"depth_kl/{place}", result.kl[i])
            pl_module.log(f"depth_agreement/{place}", result.agreement[i])
        add_figure(trainer, "depth/lens", lambda: _figure(pl_module, result))

    def _stream_of(self, pl_module: L.LightningModule) -> ResidualStream:
        if self.stream is not None:
            return stream_of(self.stream(pl_module))
        if is_readable(pl_module):
            return stream_of(pl_module)
        raise InputError(
            f"stream = None: {type(pl_module).__name__} has no Backbone; say EffectiveDepth(stream=…), from the module "
            "to a looplit.eval.lens.HookedStream"
        )


def place_tag(site: Site) -> str:
    """A block's place as the end of a tag: its stage's number, stage, pass and block; TensorBoard sorts by it.

    >>> place_tag(Site("core", 3, 1)), place_tag(Site("coda", 0, 2))
    ('2_core_3.1', '3_coda_2')
    """
    return f"{get_args(Stage).index(site.stage) + 1}_{site_label(site).replace(' ', '_')}"


def _figure(pl_module: L.LightningModule, result: LensResult) -> Any:
    from looplit.plots.lens import lens_figure

    family = getattr(pl_module, "family", None)
    return lens_figure({getattr(family, "name", type(pl_module).__name__): result})
