"""SmolLM2 for real: perplexity, an independent implementation, and the command."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")
for package in ("gguf", "tokenizers"):
    pytest.importorskip(package, reason="the extra fidelity is not installed")

from decodes import essim  # noqa: E402

from essim.errors import AbsentError  # noqa: E402
from measure.fidelity.domains import context  # noqa: E402
from measure.fidelity.model import on_device  # noqa: E402
from measure.fidelity.trajectory import run_dense  # noqa: E402
from measure.fidelity.weights.find import read_model, shipped_gguf  # noqa: E402


@pytest.fixture(scope="module")
def smollm2():
    try:
        return read_model(None)
    except AbsentError as error:
        pytest.skip(f"real weights: {error}")


@pytest.fixture(scope="module")
def prose(smollm2):
    checkpoint, tokens = smollm2
    ids = context("book", tokens, 512, 256)
    return ids, run_dense(on_device(checkpoint, "cpu"), ids, 256)


def test_tokens_are_those_of_the_original_tokenizer(smollm2) -> None:
    _, tokens = smollm2
    # Digits one by one, no BOS.
    assert tokens.encode("In 1865, Alice") == [788, 216, 33, 40, 38, 37, 28, 8590]
    assert tokens.start == ()
    text = "def f(x):\n    return 'naïve' + str(x[10])  # ünïcode\n"
    assert tokens.decode(tokens.encode(text)) == text


def test_perplexity_of_known_prose(prose) -> None:
    _, dense = prose
    picked = dense.log_probabilities.gather(1, dense.targets[:, None])
    # transformers gives the same on these weights (the test below).
    assert math.exp(-float(picked.mean())) == pytest.approx(BOOK_PERPLEXITY, rel=1e-3)


BOOK_PERPLEXITY = 16.0276


@pytest.mark.slow
def test_the_forward_pass_is_that_of_transformers(prose) -> None:
    transformers = pytest.importorskip("transformers", reason="only this test needs transformers")
    ids, dense = prose
    file = shipped_gguf()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, dtype=torch.float32
    )
    with torch.inference_mode():
        expected = theirs(ids[None, :-1]).logits[0, -256:].log_softmax(-1)
    assert dense.log_probabilities.numpy() == pytest.approx(expected.numpy(), abs=1e-3)


def test_the_command_measures_and_writes_everything(smollm2, tmp_path: Path) -> None:
    done = essim(
        *("fidelity", "--out", "out", "--domains", "book,retrieval", "--context", "320"),
        *("--decoded", "32", "--queries", "target,mix", "--budgets", "64"),
        *("--passkeys", "256", "--html"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    assert done.stdout.startswith("SmolLM2-135M-Instruct.Q4_1: 2 contexts of 320 tokens")
    assert {file.name for file in out.iterdir()} == {
        *(f"{name}.csv" for name in ("quality", "layers", "heads", "positions", "mix")),
        *("stability.csv", "passkeys.csv", "frontier.csv", "manifest.json", "summary.md"),
        *("mix.yaml", "quality.yaml", "report.html"),
    }
    with (out / "quality.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["domain"], row["selector"], row["query"]) for row in rows[:3]] == [
        *(("all", "dense", ""), ("all", "rocketkv", "target"), ("all", "rocketkv", "mix"))
    ]
    assert 0 < float(rows[1]["kl_nats"]) < 1
    about = json.loads((out / "manifest.json").read_text())
    assert about["model_sha256"].startswith("6") or len(about["model_sha256"]) == 64
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        "name: mixed\nmodel: smollm2-135m\nhardware: h200-sxm\n"
        "selector: {kind: rocketkv, prompt_budget: 512, page_tokens: 4, top_pages: 16}\n"
        "routing: {where: cpu, anchor: mix, profile: out/mix.yaml, projection_rank: 64}\n"
        "workload: {batch: 1, input_tokens: 1024, output_tokens: 16}\n"
    )
    run = essim("run", "s.yaml", "--json", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    anchors = json.loads(run.stdout)["row"]["mix"]
    assert sum(int(part.split()[0]) for part in anchors.split(", ")) == 29
