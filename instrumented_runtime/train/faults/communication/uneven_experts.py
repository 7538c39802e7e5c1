"""A router that gives the experts of one rank more tokens than the others'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuscope.instrumented_runtime.train.faults import StepContext, StepFault, require, require_rank
from gpuscope.instrumented_runtime.train.settings.parallelisms.expert import EP

if TYPE_CHECKING:
    from torch import Tensor

    from gpuscope.instrumented_runtime.train.settings.config import TrainConfig

_CERTAIN = 1e4
"""Added to the router's logits of the experts that are to be chosen."""


@dataclass(frozen=True)
class UnevenExperts(StepFault):
    """Of every rank's tokens `share` go to the experts of one rank, the rest evenly to those of the others; a share of
    1/n is even routing."""

    name = "uneven_experts"
    what = "tokens that the experts of one rank receive, of all, and what these compute"
    unit = "tokens routed to that rank"
    bound_by = "communication"
    cause = "straggler"
    rank: int = 1
    share: float = 0.75

    def ranks(self, config: TrainConfig, world_size: int) -> list[int]:  # noqa: ARG002
        return [self.rank]

    def configure(self, config: TrainConfig, world_size: int) -> TrainConfig:
        require_rank(self.rank, world_size, self.name)
        require(0 < self.share <= 1, self.name, "share", "must be above 0 and at most 1")
        require(
            config.parallel.size(EP.name) == world_size,
            self.name,
            "rank",
            "needs expert parallelism over all processes",
            "--parallel ep --preset tiny-moe",
        )
        own = config.model.experts // world_size
        top = config.model.experts_per_token
        require(own >= top, self.name, "rank", f"holds {own} experts, and a token goes to {top}", "more experts")
        return config

    def on_model(self, context: StepContext) -> None:
        from gpuscope.instrumented_runtime.train.model.moe import MoE

        def chosen(module: Any, inputs: Any, logits: Tensor) -> Tensor | None:
            del module, inputs
            if not self.due(context.step):
                return None
            forced, count = self._forced(logits, context)
            context.ledger.add(self.name, context.step, count=count)
            return logits + forced

        for part in context.parts:
            for module in part.modules():
                if isinstance(module, MoE):
                    module.router.register_forward_hook(chosen)

    def _forced(self, logits: Tensor, context: StepContext) -> tuple[Tensor, int]:
        """What to add to the logits [tokens, experts], and how many tokens go to the rank."""
        import torch

        tokens, experts = logits.shape
        own, top = experts // context.world_size, context.config.model.experts_per_token
        number = torch.arange(tokens, device=logits.device)
        here = torch.floor((number + 1) * self.share) > torch.floor(number * self.share)
        others = context.world_size - 1
        place = (self.rank + 1 + number % max(others, 1)) % context.world_size
        place = torch.where(here, torch.full_like(place, self.rank), place)
        within = (number.unsqueeze(1) + torch.arange(top, device=logits.device)) % own
        forced = torch.zeros_like(logits)
        forced.scatter_(1, place.unsqueeze(1) * own + within, _CERTAIN)
        return forced, int(here.sum())
