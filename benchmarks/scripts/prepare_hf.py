"""Makes what the language scripts train on, in their environment: a tokenizer, two small random models, three datasets.

All of it is made up: text from a seeded vocabulary, weights at random. `python prepare_language.py FOLDER`.
"""

import json
import random
import sys
from pathlib import Path

WORDS = 400
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{{ eos_token }}{% endfor %}"


def main(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        LlamaForSequenceClassification,
        PreTrainedTokenizerFast,
    )

    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(WORDS)]
    vocabulary = {word: place for place, word in enumerate(["<unk>", "<pad>", "<eos>", *dict.fromkeys(words)])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>", chat_template=TEMPLATE
    )
    torch.manual_seed(0)
    shape = {
        "vocab_size": len(vocabulary), "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4,
        "num_attention_heads": 4, "max_position_embeddings": 512, "pad_token_id": 1, "eos_token_id": 2,
        "bos_token_id": 2,
    }  # fmt: skip
    LlamaForCausalLM(LlamaConfig(**shape)).save_pretrained(folder / "causal")
    LlamaForSequenceClassification(LlamaConfig(**shape, num_labels=1)).save_pretrained(folder / "reward")
    for name in ("causal", "reward"):
        tokenizer.save_pretrained(folder / name)

    def text() -> str:
        return " ".join(chance.choices(words, k=chance.randint(40, 80)))

    rows = {
        "text": [{"text": text()} for _ in range(512)],
        "preference": [{"prompt": text(), "chosen": " " + text(), "rejected": " " + text()} for _ in range(512)],
    }
    for name, each in rows.items():
        path = folder / name / "train.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in each))
    zero = {
        "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto", "zero_optimization": {"stage": 2},
    }  # fmt: skip
    (folder / "zero2.json").write_text(json.dumps(zero))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
