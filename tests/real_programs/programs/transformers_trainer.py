"""Hugging Face's Trainer: a small masked language model on lines of text."""

from __future__ import annotations

import random
import tempfile

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments, set_seed

STEPS = 120
VOCABULARY, MASK, IGNORED = 4000, 1, -100


class Lines(Dataset[dict[str, Tensor]]):
    """Lines of tokens, a seventh of which are masked when a line is read."""

    def __init__(self, count: int, length: int) -> None:
        source = random.Random(0)
        self.lines = [[source.randrange(2, VOCABULARY) for _ in range(length)] for _ in range(count)]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.tensor(self.lines[index])
        masked = torch.rand(tokens.shape) < 1 / 7
        return {
            "input_ids": tokens.masked_fill(masked, MASK),
            "attention_mask": torch.ones_like(tokens),
            "labels": tokens.masked_fill(~masked, IGNORED),
        }


def main() -> None:
    set_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=64,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=STEPS,
            per_device_train_batch_size=16,
            learning_rate=5e-4,
            warmup_steps=20,
            logging_steps=20,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(model=BertForMaskedLM(config), args=arguments, train_dataset=Lines(2000, 64))
        trainer.train()
    print(f"trained {trainer.state.global_step} steps")


if __name__ == "__main__":
    main()
