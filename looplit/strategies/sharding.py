"""Splitting a model's parameters over processes with FSDP2, without a Trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard


def shard(
    modules: Sequence[nn.Module],
    mesh: DeviceMesh,
    compute_dtype: torch.dtype | None = None,
    initialize: Callable[[], None] | None = None,
) -> None:
    """Shards modules in place, each by its rows. A model that is sharded already stays as it is.

    Master weights, gradients and their reduction keep the parameters' own precision (fp32). Token embeddings are
    looked up in it too: their gradient adds up thousands of occurrences of a frequent token, which bf16 would round
    away. Inputs and outputs are not cast, so the residual stream stays in fp32.

    Args:
        modules: What is gathered and released together, inner modules first; the last is the root, whose forward
            every use of the model must go through. Compile them before, not after.
        mesh: Processes that share the parameters; of two dimensions, the second shares and the first holds copies.
        compute_dtype: Of the gathered weights and of the products with them; default the parameters' own.
        initialize: Fills weights and buffers of modules that were built on the meta device; called where each process
            has memory for its shards.
    """
    *inner, root = modules
    if isinstance(root, FSDPModule):
        return
    precise = MixedPrecisionPolicy(cast_forward_inputs=False)
    policy = precise
    if compute_dtype is not None:
        policy = MixedPrecisionPolicy(compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for module in inner:
        fully_shard(module, mesh=mesh, mp_policy=policy)
    for module in root.modules():
        if isinstance(module, nn.Embedding) and not isinstance(module, FSDPModule):
            fully_shard(module, mesh=mesh, mp_policy=precise).set_unshard_in_backward(False)  # a look-up needs none
    fully_shard(root, mesh=mesh, mp_policy=policy)
    if initialize is not None and any(parameter.is_meta for parameter in root.parameters()):
        root.to_empty(device=mesh.device_type)
        initialize()
    for module in root.modules():
        if isinstance(module, FSDPModule):  # torch cannot accumulate around a dormant core that was never gathered
            module.unshard()
            module.reshard()
