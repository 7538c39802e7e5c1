"""Expert parallelism: each rank holds some experts; tokens are sent to theirs and back by all-to-all."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from gpuscope.instrumented_runtime.record.ranges import span
from gpuscope.instrumented_runtime.train.measures.exposed_time import EXPOSED
from gpuscope.instrumented_runtime.train.mesh import Mesh
from gpuscope.instrumented_runtime.train.model.moe import Experts, MoE
from gpuscope.instrumented_runtime.train.parallel.all_to_all import all_to_all
from gpuscope.instrumented_runtime.train.parallel.build import Build
from gpuscope.instrumented_runtime.train.settings.parallelisms.expert import EP
from gpuscope.instrumented_runtime.train.settings.sections import DATA


def apply(build: Build) -> None:
    """Shard the experts, and average their gradients over the ranks that hold the same ones."""
    mesh = build.mesh.of(EP)
    exchange = TokenExchange(mesh.get_group())
    cut: list[nn.Parameter] = []
    for moe in build.modules(MoE):
        moe.exchange = exchange
        for name, parameter in moe.experts.named_parameters():
            moe.experts.register_parameter(name, nn.Parameter(distribute_tensor(parameter.data, mesh, [Shard(0)])))
        moe.experts.is_cut = True
        cut.extend(moe.experts.parameters())
    everyone, same = build.mesh.averaged, same_experts(build.mesh)
    sharded = same is not None and DATA[build.config.parallel.data].shards_parameters
    if everyone is not None and not sharded:  # the data parallelism that shards them divides them too
        build.after_backward.append(ExpertGradients(cut, same, everyone.size()).synchronize)


def same_experts(mesh: Mesh) -> DeviceMesh | None:
    """The ranks that hold the same experts and average their gradients."""
    return mesh.view(*(axis for axis in mesh.averaging if axis is not EP))


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
