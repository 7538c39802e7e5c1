"""The mixture-of-experts form of the MLP: a router, and experts whose weights are stacked.

Dropless: each token goes to its `experts_per_token` best experts whatever their load, so the counts per
expert are uneven, and so are the all-to-alls that `parallel.expert` puts around `Experts`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F  # noqa: N812

from gpuscope.instrumented_runtime.train.settings.config import ModelConfig

Exchange = Callable[[Tensor, Tensor, "Experts"], Tensor]


class Experts(nn.Module):
    """MLPs with stacked weights [experts, in, out]; runs tokens that come sorted by expert."""

    def __init__(self, experts: int, width: int) -> None:
        super().__init__()
        self.is_cut = False  # set by expert parallelism: the parameters hold this rank's experts only
        self.up = nn.Parameter(torch.empty(experts, width, 4 * width))
        self.down = nn.Parameter(torch.empty(experts, 4 * width, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.up, std=0.02)
        nn.init.normal_(self.down, std=0.02)

    def forward(self, tokens: Tensor, counts: list[int]) -> Tensor:
        """tokens [n, width], the first counts[0] of them for expert 0, and so on."""
        ups, downs = _local(self.up).unbind(), _local(self.down).unbind()
        parts = torch.split(tokens, counts)
        return torch.cat([F.gelu(x @ up) @ down for x, up, down in zip(parts, ups, downs, strict=True)])


def _local(parameter: Tensor) -> Tensor:
    """This rank's shard of a sharded parameter; any other unchanged."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def run_locally(tokens: Tensor, counts: Tensor, experts: Experts) -> Tensor:
    """Run all experts locally, without exchange. `counts` is [experts]."""
    return experts(tokens, counts.tolist())  # type: ignore[no-any-return]


class MoE(nn.Module):
    """Routes each token to its best experts and adds up their outputs by the router's weights."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.top = config.experts_per_token
        self.router = nn.Linear(config.width, config.experts, bias=False)
        self.experts = Experts(config.experts, config.width)
        self.exchange: Exchange = run_locally

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weight, expert = self.router(tokens).softmax(-1).topk(self.top)
        weight = weight / weight.sum(-1, keepdim=True)
        order = expert.flatten().argsort(stable=True)
        counts = expert.flatten().bincount(minlength=self.router.out_features)
        sorted_out = self.exchange(tokens[order // self.top], counts, self.experts)
        # Undo the sort by gathering through the inverse permutation, not by index_add, whose order of
        # additions varies on GPUs.
        inverse = order.argsort()
        out = sorted_out[inverse].view(*expert.shape, -1)
        return (out * weight.unsqueeze(-1)).sum(1).view_as(x)  # type: ignore[no-any-return]
