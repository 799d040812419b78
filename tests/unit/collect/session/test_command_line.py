"""No credential of a command line reaches the manifest."""

from __future__ import annotations

import pytest

from stepscope.collect.session.command_line import redacted

SECRET = "correcthorse"
KEY = "0123456789abcdef0123456789abcdef01234567"  # as W&B makes them
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    "line",
    [
        f"train.py --api-key {SECRET} --epochs 3",
        f"train.py --wandb_api_key={SECRET} --epochs 3",
        f"train.py --HF_TOKEN {SECRET} --epochs 3",
        f"train.py -token {SECRET} --epochs 3",
        f"train.py --client-secret={SECRET} --epochs 3",
        f"train.py --db.password {SECRET} --epochs 3",
        f"train.py --passwd {SECRET} --epochs 3",
        f"train.py +logger.api_key={SECRET} --epochs 3",
        f"env WANDB_API_KEY={SECRET} train.py --epochs 3",
        f"train.py --hub hf_{SECRET} --epochs 3",
        f"train.py --judge sk-proj-{SECRET} --epochs 3",
        f"train.py --repo ghp_{SECRET}0123456789 --epochs 3",
        f"train.py --store AKIA{SECRET.upper()} --epochs 3",
        f"train.py --auth {JWT} --epochs 3",
        f"train.py --data https://me:{SECRET}@example.org/data --epochs 3",
        f"train.py --db=postgres://me:{SECRET}@example.org:5432/runs --epochs 3",
        f"train.py --data https://example.org/data?part=1&api_key={SECRET} --epochs 3",
        f"train.py --data=https://example.org/data?sv=2024&sig={SECRET}%3D --epochs 3",
        f"train.py --data s3://data?X-Amz-Security-Token={SECRET}&x=1 --epochs 3",
        f"train.py --store AccountName=me;AccountKey={SECRET}==;EndpointSuffix=example.org --epochs 3",
        f"train.py --repo https://{SECRET}0123456789@example.org/data.git --epochs 3",
        f"train.py --report https://hooks.slack.com/services/T0/B0/{SECRET} --epochs 3",
        f"train.py --header Authorization:Bearer_ghp_{SECRET} --epochs 3",
        f"train.py --tokens first {SECRET} --epochs 3",
        f"train.py --api-key -{SECRET} --epochs 3",
        f"train.py --use-key --token {SECRET} --epochs 3",
        f"train.py --login me:{SECRET} --epochs 3",
        f"train.py --proxy-user me:{SECRET} --epochs 3",
        f"train.py --auth {SECRET} --epochs 3",
        f"train.py --wandb {KEY} --epochs 3",
        f"train.py {KEY} --epochs 3",
    ],
)
def test_credentials_are_replaced(line: str) -> None:
    text = " ".join(redacted(line.split()))
    assert SECRET.lower() not in text.lower()
    assert JWT not in text
    assert KEY not in text
    assert "<redacted>" in text
    assert "train.py" in text
    assert text.endswith("--epochs 3")


@pytest.mark.parametrize(
    "word",
    [
        f"--password=three {SECRET} epochs words",
        f'{{"api_key": "{SECRET}", "epochs": 3}}',
        f"import os; os.environ['HF_TOKEN'] = '{SECRET}'; epochs = 3",
        f"cd data && HF_TOKEN={SECRET} python train.py --epochs 3",
        f"login(token='{SECRET}'); epochs = 3",
        f"Authorization: Bearer {SECRET}; epochs = 3",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY----- epochs 3",
    ],
)
def test_credentials_inside_a_word_are_replaced(word: str) -> None:
    (text,) = redacted([word])
    assert SECRET not in text
    assert "<redacted>" in text
    assert ("epochs" in text) is not word.startswith("--password")


def test_the_rest_stays() -> None:
    line = [
        *("python", "-X", "dev", "-m", "stepscope", "run", "train.py", "--use-key", "--lr=0.1", "--task", "sk-learn"),
        *("--data", "https://example.org:8080/a@b", "-c", "x = sorted(y, key=len)", "größe", "\udcff", ""),
        *("--author", "me", "--revision", KEY, f"data.sha1={KEY}", "--user", "me", "a:b"),
    ]
    assert list(redacted(line)) == line
