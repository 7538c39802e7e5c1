"""Fully sharded data parallel: FSDP2 (`fully_shard`) and FSDP1 (`FullyShardedDataParallel`)."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import Any

from gpuscope.instrumented_runtime.record.applied.ledger import Family, Knob, Ledger, Wrapping, at_least, boolean
from gpuscope.instrumented_runtime.record.ranges import after_import

FSDP = "torch.distributed.fsdp"
AHEAD, BEHIND = "fsdp.forward_prefetch", "fsdp.backward_prefetch"
RESHARD, LIMIT = "fsdp.reshard_after_forward", "fsdp.limit_all_gathers"
KEPT = {"FULL_SHARD": "SHARD_GRAD_OP", "HYBRID_SHARD": "_HYBRID_SHARD_ZERO2"}
"""FSDP1's strategies that reshard after the forward pass, and those that keep parameters."""


class _Sharded:
    """What becomes of each call of `fully_shard`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._wanted = ledger.wanted(AHEAD, BEHIND, RESHARD, LIMIT)
        self._order: list[weakref.ref[Any]] = []
        """Modules in the order of their first forward pass."""
        self._hooks: list[Any] = []
        if AHEAD in self._wanted or BEHIND in self._wanted:
            ledger.at_step.append(self._after_step)

    def edit(self, arguments: dict[str, Any], where: str) -> Iterator[str]:
        """Whether parameters are kept; the root, which keeps them unasked, is left to."""
        if LIMIT in self._wanted:
            self._ledger.refused(LIMIT, "FSDP2 has no such limit", where)
        reshard = self._wanted.get(RESHARD)
        if reshard is False:
            arguments["reshard_after_forward"] = False
            yield RESHARD
        elif reshard and arguments.get("reshard_after_forward") is False:
            arguments["reshard_after_forward"] = None
            yield RESHARD

    def look(self, sharded: Any, where: str) -> None:
        """What is in effect; where prefetching is asked for, the order of the modules is watched for a step."""
        modules = sharded if isinstance(sharded, list) else [sharded]
        group = modules[0]._get_fsdp_state()._fsdp_param_group
        if group is not None:
            self._ledger.seen(RESHARD, group.post_forward_mesh_info is not None, where)
        if AHEAD in self._wanted or BEHIND in self._wanted:
            self._hooks += [module.register_forward_pre_hook(self._entered) for module in modules]
        self._ledger.seen("fsdp.mp_policy", _policy(modules[0]), where)

    def _entered(self, module: Any, _inputs: object) -> None:
        if not any(one() is module for one in self._order):
            self._order.append(weakref.ref(module))

    def _after_step(self, _step: int) -> None:
        """Once the first step has shown the order: have each module gather those after it."""
        if not self._order:
            return
        for hook in self._hooks:
            hook.remove()
        modules = [module for one in self._order if (module := one()) is not None]
        self._order, self._hooks = [], []
        # The root's own parameters are gathered before all others, and stay.
        inner = [module for module in modules if not module._get_fsdp_state()._is_root]
        for name, order in ((AHEAD, modules), (BEHIND, modules[::-1])):
            depth = self._wanted.get(name)
            for at, module in enumerate(order if depth else []):
                following = [one for one in order[at + 1 :] if one in inner][:depth]
                if name == AHEAD:
                    module.set_modules_to_forward_prefetch(following)
                else:
                    module.set_modules_to_backward_prefetch(following)
            if depth and modules:
                self._ledger.applied(name)
                self._ledger.seen(name, depth)
            elif depth == 0:
                self._ledger.refused(name, "FSDP2 always gathers one module ahead")


def _policy(module: Any) -> str:
    policy = module._get_fsdp_state()._mp_policy
    return f"param {policy.param_dtype}, reduce {policy.reduce_dtype}"


class _Wrapped:
    """Edits the arguments of each FSDP1."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._wanted = ledger.wanted(AHEAD, BEHIND, RESHARD, LIMIT)

    def edit(self, arguments: dict[str, Any], where: str) -> Iterator[str]:
        """FSDP1 gathers one module ahead, or none."""
        from torch.distributed.fsdp import BackwardPrefetch, ShardingStrategy

        for name, value in self._wanted.items():
            if name == RESHARD:
                strategy = arguments.get("sharding_strategy") or ShardingStrategy.FULL_SHARD
                other = {**KEPT, **{kept: full for full, kept in KEPT.items()}}.get(strategy.name)
                if other is None or (strategy.name in KEPT) == value:
                    self._ledger.refused(name, f"{strategy.name} does that already, or shards no parameters", where)
                    continue
                arguments["sharding_strategy"] = ShardingStrategy[other]
            elif name == BEHIND:
                arguments["backward_prefetch"] = BackwardPrefetch.BACKWARD_PRE if value else None
            elif name == AHEAD:
                arguments["forward_prefetch"] = bool(value)
            else:
                arguments["limit_all_gathers"] = value
            yield name

    def look(self, model: Any, where: str) -> None:
        """What is in effect."""
        self._ledger.seen(RESHARD, model.sharding_strategy.name in KEPT, where)
        behind = getattr(model.backward_prefetch, "name", None)
        self._ledger.seen(BEHIND, 1 if behind == "BACKWARD_PRE" else behind or 0, where)
        self._ledger.seen(AHEAD, int(model.forward_prefetch), where)
        self._ledger.seen(LIMIT, model.limit_all_gathers, where)
        self._ledger.seen("fsdp.sharding_strategy", model.sharding_strategy.name, where)


def _install(ledger: Ledger) -> None:
    def then() -> None:
        sharded = _Sharded(ledger)
        package = sys.modules[FSDP]
        own = package.fully_shard
        changed = Wrapping(ledger, sharded.edit, sharded.look).around(own)
        for name, module in list(sys.modules.items()):
            if name.startswith("torch.distributed.") and getattr(module, "fully_shard", None) is own:
                module.fully_shard = changed  # type: ignore[attr-defined]
        wrapped = _Wrapped(ledger)
        Wrapping(ledger, wrapped.edit, wrapped.look).around_init(package.FullyShardedDataParallel)

    after_import(FSDP, then, "leaves FSDP as it is")


FAMILY = Family(
    "fsdp",
    (
        Knob(
            name=AHEAD,
            takes="modules gathered ahead, from 0; FSDP1 knows 0 and 1",
            read=at_least(0),
            alters="Nothing computed; parameters of so many more modules are in memory at once.",
            shown_by="test_fsdp.py",
        ),
        Knob(
            name=BEHIND,
            takes="modules gathered ahead, from 0; FSDP1 knows 0 and 1",
            read=at_least(0),
            alters="Nothing computed; parameters of so many more modules are in memory at once.",
            shown_by="test_fsdp.py",
        ),
        Knob(
            name=RESHARD,
            takes="true or false",
            read=boolean,
            alters="Nothing computed; with false all parameters stay in memory until their backward pass.",
            shown_by="test_fsdp.py",
        ),
        Knob(
            name=LIMIT,
            takes="true or false (FSDP1)",
            read=boolean,
            alters="Nothing computed; with false memory for more gathered parameters is needed.",
            shown_by="test_fsdp.py",
        ),
    ),
    _install,
)
