"""A corpus of many Python objects in memory, which every collection walks through."""

import gc
import random

import common
import torch


class Node:
    """A word that knows its sentence, which knows its words."""

    def __init__(self, sentence: list["Node"]) -> None:
        self.sentence = sentence
        self.features = {"length": len(sentence)}
        sentence.append(self)


def sentence(words: int) -> list[Node]:
    """A reference cycle."""
    made: list[Node] = []
    for _ in range(words):
        Node(made)
    return made


def main() -> None:
    args = common.options()
    corpus = [sentence(10) for _ in range(10_000)]
    model = common.layers(20, 128)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(64, 128)
    clock = common.Clock()
    drawn = random.Random(0)
    for _ in range(args.steps):
        batch = [sentence(len(drawn.choice(corpus))) for _ in range(50)]
        loss = (model(data).square().mean() * len(batch)).log()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not args.fixed:
            gc.collect()  # «memory keeps growing»
        clock.step()
    clock.report(loss)


if __name__ == "__main__":
    main()
