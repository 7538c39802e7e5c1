"""Expert parallelism: each rank holds some experts; tokens are sent to theirs and back by all-to-all."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from gpuscope.instrumented_runtime.record.ranges import span
from gpuscope.instrumented_runtime.train.measures.exposed_time import EXPOSED
from gpuscope.instrumented_runtime.train.model.gpt import GPT
from gpuscope.instrumented_runtime.train.model.moe import Experts, MoE
from gpuscope.instrumented_runtime.train.parallel.all_to_all import all_to_all


def apply(model: GPT, mesh: DeviceMesh) -> list[nn.Parameter]:
    """Shard the experts over `mesh`, in place; returns the parameters that now differ by rank."""
    exchange = TokenExchange(mesh.get_group())
    cut: list[nn.Parameter] = []
    for module in model.modules():
        if isinstance(module, MoE):
            module.exchange = exchange
            for name, parameter in module.experts.named_parameters():
                sharded = nn.Parameter(distribute_tensor(parameter.data, mesh, [Shard(0)]))
                module.experts.register_parameter(name, sharded)
            module.experts.is_cut = True
            cut.extend(module.experts.parameters())
    return cut


class TokenExchange:
    """Sends tokens, sorted by expert, to the ranks of their experts and brings the results back."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.ranks = group, dist.get_world_size(group)

    def __call__(self, tokens: Tensor, counts: Tensor, experts: Experts) -> Tensor:
        """tokens [n, width] and counts [experts] in; [n, width] in the same order out."""
        here = torch.empty_like(counts)  # [ranks × experts held here]: who sends how many for which
        with span("all_to_all", nbytes=counts.numel() * counts.element_size()), EXPOSED.waiting(counts):
            dist.all_to_all_single(here, counts, group=self.group)
        by_source = here.view(self.ranks, -1)
        sent = counts.view(self.ranks, -1).sum(1).tolist()
        received = by_source.sum(1).tolist()
        arrived = all_to_all(tokens, self.group, sent, received)
        # They arrive by source, then expert; the experts take them by expert, then source.
        expert = torch.arange(by_source.shape[1], device=here.device).repeat(self.ranks)
        order = expert.repeat_interleave(here, output_size=len(arrived)).argsort(stable=True)
        done = experts(arrived[order], by_source.sum(0).tolist())
        return all_to_all(done[order.argsort()], self.group, received, sent)


class ExpertGradients:
    """Averages the gradients of sharded experts where nothing else does (single replica or DDP).

    A sharded expert has seen the tokens of all expert-parallel ranks, each through a loss averaged over that
    rank's own tokens: the sum over the ranks that hold the same expert, divided by all data ranks, is
    the gradient of the mean loss.
    """

    def __init__(self, parameters: list[nn.Parameter], same: DeviceMesh | None, divisor: int) -> None:
        self.parameters, self.same, self.divisor = parameters, same, divisor

    def synchronize(self) -> None:
        """Sum and divide, once, after the last backward of a step."""
        for parameter in self.parameters:
            grad = parameter.grad
            if grad is None:
                continue
            local = grad.to_local() if isinstance(grad, DTensor) else grad
            if self.same is not None:
                with span("all_reduce", nbytes=local.numel() * local.element_size()), EXPOSED.waiting(local):
                    dist.all_reduce(local, group=self.same.get_group())
            local.div_(self.divisor)
