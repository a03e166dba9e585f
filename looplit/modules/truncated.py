"""The LightningModule of the truncation study."""

from __future__ import annotations

from looplit.model.config import CONTEXT, VOCABULARY, Boundary, MLPKind
from looplit.modules.base import LoopedLM
from looplit.recipes.truncation_study import BATCH_TOKENS, TRUNCATED_LOOP, WIDTHS, truncation_study


class TruncatedLoop(LoopedLM):
    """One tied core applied T times with the gradient through its last B passes, trained by MuonH and HyperP.

    The truncation study's model (arXiv 2610.26030): 2-4-2 blocks of squared ReLU with learned gains, a linear boundary
    before each pass and RMSNorm after it, logits capped at 15. The families of the growth study take `trained_passes`
    too; `docs/truncation.md` says what the study prints and what is its basis'.

    Args:
        passes: T. One pass is no looping: it has no boundary and HyperP's reference without loops.
        trained_passes: B; default all passes, full backpropagation.
        width: Size of the residual stream: 768, 1088, 1536, 2176 and 3072 for the study's 60M to 1B.
        heads: Attention heads per block; default one per 64 of width.
        split: Blocks of prelude, core and coda; default 2, 4, 2.
        vocabulary: Token ids of the tokenizer. The study's printed compute fits 32,768.
        context: Tokens per window.
        boundary: φ, before each pass; "linear" by default, with "inject" h_0 = 0, "identity" passes the state through;
            or the import path of a `looplit.model.BoundaryOperator` of your own.
        mlp: "squared_relu" with 4·width hidden units, or "swiglu".
        batch_tokens: Tokens per optimizer step. HyperP's learning rates depend on it, so a Trainer that takes another
            number is refused.
        learning_rate: Of the matrices; default HyperP's for the batch and the tokens, batch times planned steps.
        embedding_lr: Of the embedding; default HyperP's for the batch and the width.
        head_lr: Of the head; the same.
        gain_lr: Of the norms' gains; default HyperP's for the width.
        betas: Of AdamW.
        eps: Of AdamW.
        final_factor: Where the linear decay over the whole run ends, as a share of its start.
        steps: Planned optimizer steps of the schedule and of HyperP's budget; default those the Trainer will take.
        compile: Whether to compile each block. One graph serves all blocks and every pass.
        seed: Of the initial weights; default the global seed (`seed_everything`).

    Raises:
        InputError: A value that breaks a rule of the backbone or of the recipe.
    """

    study, family = truncation_study, TRUNCATED_LOOP

    def __init__(
        self,
        passes: int,
        trained_passes: int | None = None,
        width: int = WIDTHS[0],
        heads: int | None = None,
        split: tuple[int, int, int] | None = None,
        vocabulary: int = VOCABULARY,
        context: int = CONTEXT,
        boundary: Boundary | None = None,
        mlp: MLPKind = "squared_relu",
        batch_tokens: int = BATCH_TOKENS,
        learning_rate: float | None = None,
        embedding_lr: float | None = None,
        head_lr: float | None = None,
        gain_lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        final_factor: float | None = None,
        steps: int | None = None,
        compile: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.build()
