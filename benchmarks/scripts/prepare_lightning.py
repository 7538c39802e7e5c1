"""Makes what litgpt trains on: text files of made-up words, and a tokenizer. `python prepare_lightning.py FOLDER`."""

import json
import random
import sys
from pathlib import Path

from torchvision_operators import declare


def texts(folder: Path) -> None:
    """Text files."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(400)]
    base = folder / "texts"
    base.mkdir(parents=True, exist_ok=True)
    for place in range(4):
        (base / f"{place}.txt").write_text(" ".join(chance.choices(words, k=20_000)))
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=["<s>", "</s>"])
    tokenizer.train([str(path) for path in base.glob("*.txt")], trainer)
    place = folder / "tokenizer"
    place.mkdir(exist_ok=True)
    tokenizer.save(str(place / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (place / "tokenizer_config.json").write_text(json.dumps(named))


if __name__ == "__main__":
    declare()
    texts(Path(sys.argv[1]))
