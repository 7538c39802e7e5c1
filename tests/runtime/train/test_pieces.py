"""The model, its data and the ways they are cut, in one process."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from gpuscope.errors import InputError, UsageError
from gpuscope.instrumented_runtime.train.mesh import ShardSampler, World, clip_gradients, make_dataset, make_loader
from gpuscope.instrumented_runtime.train.model import GPT, MoE, cut
from gpuscope.instrumented_runtime.train.parallel.compose import apply_compile
from gpuscope.instrumented_runtime.train.parallel.model_parallel import positions
from gpuscope.instrumented_runtime.train.settings.config import ModelConfig, TrainConfig
from gpuscope.instrumented_runtime.train.settings.parallel_spec import assemble, validate
from gpuscope.instrumented_runtime.train.settings.parallelisms.built_in import layers_of_stages
from gpuscope.instrumented_runtime.train.trainer import Trainer


def tiny(*settings: str) -> TrainConfig:
    small = ("model.width=16", "model.heads=2", "model.vocabulary=256", "data.sequence=8", "data.batch=2")
    return assemble(parallel="single", world_size=1, settings=[*small, *settings])


def test_ranks_share_the_samples_of_each_step() -> None:
    both = [list(itertools.islice(ShardSampler(3, rank, 2, first_sample=12), 2)) for rank in range(2)]
    assert both == [[[12, 13, 14], [18, 19, 20]], [[15, 16, 17], [21, 22, 23]]]


def test_a_file_is_read_as_bytes_in_windows(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(range(8 * 3 + 1)))  # three windows of 8, each with the byte after it
    dataset = make_dataset(tiny(f"data.path={text}"))
    windows = sorted(dataset[i].tolist() for i in range(3))
    assert windows == [list(range(start, start + 9)) for start in (0, 8, 16)]
    assert torch.equal(dataset[0], dataset[3])  # and around again


@pytest.mark.parametrize(
    ("content", "settings", "kind", "said"),
    [
        (b"short", (), InputError, "fewer than one sequence"),
        (b"x" * 100, ("model.vocabulary=128",), UsageError, "model.vocabulary"),
        (None, (), InputError, "is not a file"),
    ],
)
def test_files_that_can_not_be_trained_on(
    tmp_path: Path, content: bytes | None, settings: tuple[str, ...], kind: type[Exception], said: str
) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(kind, match=said):
        make_dataset(tiny(f"data.path={path}", *settings))


def test_loader_processes_give_the_same_batches() -> None:
    alone, helped = (
        make_loader(make_dataset(config), config, rank=1, ranks=2) for config in (tiny(), tiny("data.workers=1"))
    )
    expected = list(itertools.islice(alone, 3))
    assert all(torch.equal(a, b) for a, b in zip(expected, itertools.islice(helped, 3), strict=True))


def test_the_loss_falls() -> None:
    config = tiny("train.steps=120", "optimizer.lr=0.02", "optimizer.warmup=0", "data.batch=8", "model.vocabulary=16")
    losses: list[float | None] = []
    world = World(0, 1, 0, torch.device("cpu"), None)
    Trainer(config, world, validate(config, 1)).run(lambda record: losses.append(record.loss))
    assert losses[0] == pytest.approx(2.77, abs=0.1)  # ln 16: it knows nothing
    assert losses[-1] is not None
    assert losses[-1] < 2.4


def test_a_token_sees_none_after_it() -> None:
    model = GPT(ModelConfig(layers=2, width=16, heads=2, vocabulary=32), sequence=8)
    tokens = torch.randint(32, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 32
    before, after = model(tokens)[0], model(changed)[0]
    assert torch.equal(before[:5], after[:5])
    assert not torch.allclose(before[5:], after[5:])


def test_stages_in_a_row_are_the_model() -> None:
    model = GPT(ModelConfig(layers=3, width=16, heads=2, vocabulary=32), sequence=8)
    tokens = torch.randint(32, (2, 8))
    first = cut(model, range(2), first=True, last=False)
    last = cut(model, range(2, 3), first=False, last=True)
    assert torch.equal(last(first(tokens)), model(tokens))


def test_an_moe_weighs_the_outputs_of_its_best_experts() -> None:
    moe = MoE(ModelConfig(width=8, heads=1, experts=3, experts_per_token=2))
    x = torch.randn(1, 5, 8)
    weights = moe.router(x).softmax(-1)
    outputs = torch.stack([moe.experts(x[0].repeat(1, 1), [5 * (e == i) for i in range(3)]) for e in range(3)], 1)
    least = weights[0].argmin(-1)
    kept = weights[0].scatter(1, least[:, None], 0.0)
    expected = (outputs * (kept / kept.sum(-1, keepdim=True)).unsqueeze(-1)).sum(1)
    assert torch.allclose(moe(x)[0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("layers", "stages", "wanted", "expected"),
    [
        (4, 2, "", [range(2), range(2, 4)]),
        (5, 2, "", [range(3), range(3, 5)]),
        (4, 2, "3,1", [range(3), range(3, 4)]),
    ],
)
def test_layers_of_stages(layers: int, stages: int, wanted: str, expected: list[range]) -> None:
    assert layers_of_stages(layers, stages, wanted) == expected


@pytest.mark.parametrize("wanted", ["2,1", "4", "4,0", "a,b", "2,1,1"])
def test_layers_that_do_not_add_up(wanted: str) -> None:
    with pytest.raises(UsageError, match="layers_per_stage"):
        layers_of_stages(4, 2, wanted)


def test_positions_of_context_parallel_ranks() -> None:
    assert [positions(8, rank, 2, balanced=False).tolist() for rank in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [positions(8, rank, 2, balanced=True).tolist() for rank in range(2)] == [[0, 1, 6, 7], [2, 3, 4, 5]]


def test_gradients_are_clipped_to_the_norm_of_all() -> None:
    first, second = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    first.grad, second.grad = torch.tensor([3.0]), torch.tensor([4.0])
    assert clip_gradients([first, second], 1.0, None).item() == pytest.approx(5.0)
    assert (first.grad.item(), second.grad.item()) == (pytest.approx(0.6), pytest.approx(0.8))


def test_cuda_graphs_need_a_gpu() -> None:
    config = tiny("train.cuda_graph=true", "train.device=cpu")
    with pytest.raises(UsageError, match="cuda_graph"):
        Trainer(config, World(0, 1, 0, torch.device("cpu"), None), validate(config, 1))


def test_each_block_is_compiled_and_they_share_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a code generator: the graphs that torch.compile makes of them are called as they are."""
    from torch._dynamo import reset

    graphs = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph.forward

    compile_block = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compile_block(self, backend=backend))
    config = tiny("model.layers=3")
    model = GPT(config.model, config.data.sequence)
    tokens = torch.zeros(1, config.data.sequence, dtype=torch.int64)
    with torch.no_grad():
        before = model(tokens)
        reset()
        apply_compile(model)
        after = model(tokens)
    assert len(graphs) == 1
    assert torch.equal(before, after)
    reset()
