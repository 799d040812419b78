"""What a change is called where a trainer runs the loop: by the trainer's own argument."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from stepscope.advise.observed import Observed


class Trainer(NamedTuple):
    """A trainer that runs the loop of the program.

    Attributes:
        runs: Matches the file whose functions are in the stack while it trains.
        says: Its words, by what is changed; ``{}`` stands for a number of workers.
    """

    runs: re.Pattern[str]
    says: Mapping[str, str]


_TRAINERS = (
    Trainer(
        re.compile(r"[/\\]transformers[/\\]trainer\.py$"),
        {
            "workers": "Load in workers: TrainingArguments(dataloader_num_workers={}, "
            "dataloader_persistent_workers=True)",
            "no workers": "TrainingArguments(dataloader_num_workers=0)",
            "kept workers": "TrainingArguments(dataloader_persistent_workers=True)",
            "equal lengths": 'TrainingArguments(train_sampling_strategy="group_by_length"), before transformers 5 '
            "group_by_length=True",
            "fused optimizer": 'TrainingArguments(optim="adamw_torch_fused")',
            "evaluation": 'Evaluate less often: TrainingArguments(eval_strategy="steps", eval_steps=500); or on a part '
            "of the validation data.",
            "checkpoint": 'Save less often: TrainingArguments(save_strategy="steps", save_steps=500).',
            "logging": "Log less often: TrainingArguments(logging_steps=100).",
        },
    ),
    Trainer(
        re.compile(r"[/\\](?:pytorch_)?lightning[/\\](?:pytorch[/\\])?loops[/\\]"),
        {
            "evaluation": "Evaluate less often: Trainer(check_val_every_n_epoch=10), "
            "Trainer(val_check_interval=500); or on a part of the validation data: Trainer(limit_val_batches=10).",
            "checkpoint": "Save less often: ModelCheckpoint(every_n_train_steps=500).",
            "logging": "Log less often: Trainer(log_every_n_steps=100).",
        },
    ),
    Trainer(
        re.compile(r"[/\\]keras[/\\].*[/\\]trainer\.py$"),
        {
            "workers": "Load in workers: model.fit(torch.utils.data.DataLoader(…, num_workers={}, "
            "persistent_workers=True))",
            "evaluation": "Evaluate less often: model.fit(…, validation_freq=10); or on a part of the validation data: "
            "validation_steps=10.",
            "checkpoint": "Save less often: ModelCheckpoint(…, save_freq=500).",
            "logging": "Log less often: TensorBoard(update_freq=100, histogram_freq=0).",
        },
    ),
    Trainer(
        re.compile(r"[/\\]paddle[/\\]hapi[/\\]model\.py$"),
        {
            "workers": "Load in workers: model.fit(…, num_workers={})",
            "no workers": "model.fit(…, num_workers=0)",
            "evaluation": "Evaluate less often: model.fit(…, eval_freq=10); or on a part of the validation data.",
            "checkpoint": "Save less often: model.fit(…, save_freq=10).",
            "logging": "Log less often: from a callback of your own, every 100 batches; WandbCallback and VisualDL log "
            "every batch.",
        },
    ),
)


def trainer_says(observed: Observed, what: str, default: str) -> str:
    """Return what a change is called in the trainer that runs the loop; the default where it has no word for it."""
    found = (trainer for trainer in _TRAINERS if any(map(trainer.runs.search, observed.files)))
    return next((trainer.says[what] for trainer in found if what in trainer.says), default)
