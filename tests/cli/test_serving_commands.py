"""`essim serve` and `essim plan` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from command import essim

FEW = ("--set", "traffic.requests=60", "--set", "traffic.rate=5")


def test_serve_says_whether_the_promise_is_kept(tmp_path: Path) -> None:
    out, html, trace = (tmp_path / name for name in ("r.parquet", "r.html", "r.json"))
    files = ("--out", str(out), "--html", str(html), "--trace", str(trace))
    done = essim("serve", "chat-service", *FEW, *files)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-3:] == [f"wrote {out}", f"wrote {html}", f"wrote {trace}"]
    for text in ("TTFT", "TPOT", "ITL", "E2E", "The promise is kept: 100.0% of requests"):
        assert text in done.stdout
    assert "Not measured: " in done.stdout
    assert "scaled (attn_prefill)" in done.stdout
    table = pq.read_table(out)
    assert table.num_rows == 60
    assert {"arrival_s", "ttft_s", "tpot_s", "itl_s", "preemptions"} <= set(table.column_names)
    assert {event["ph"] for event in json.loads(trace.read_text())["traceEvents"]} == {"X", "C"}
    assert html.read_text().count('class="plot"') == 4


def test_serve_json_is_one_object() -> None:
    done = essim("serve", "chat-service", *FEW, "--json")
    found = json.loads(done.stdout)
    assert set(found) == {"row", "latencies", "over_time", "verdict", "left_out", "manifest"}
    assert found["row"]["gpus"] == 3
    assert [row["metric"] for row in found["latencies"]] == ["TTFT", "TPOT", "ITL", "E2E"]
    sources = found["manifest"]["price_sources"]
    assert (sources["norm"], sources["attn_prefill"]) == ("interpolated", "scaled")


@pytest.mark.slow
def test_plan_says_what_each_routing_saves(tmp_path: Path) -> None:
    vary = "plan.vary={routing: [gpu-target, gpu-target-fused]}"
    out, html = tmp_path / "p.csv", tmp_path / "p.html"
    files = ("--out", str(out), "--html", str(html))
    done = essim("plan", "chat-service", *FEW, "--set", vary, *files)
    assert done.returncode == 0, done.stderr
    assert "keeps the promise with 1 GPU;" in done.stdout
    assert "gpu-target-fused needs 1 GPU, gpu-target 1: it saves none." in done.stdout
    assert len(out.read_text().splitlines()) == 3
    assert 'class="plot"' in html.read_text()


def test_what_cannot_be_served_is_said() -> None:
    done = essim("serve", "earlyselect-40k")
    assert done.returncode == 2
    assert done.stderr.endswith("earlyselect-40k.yaml:1: traffic: required, but missing\n")
    small = ("--set", "hardware=rtx-4090", "--set", "model=llama-3.1-70b")
    done = essim("serve", "chat-service", *FEW, *small)
    assert done.returncode == 2
    assert "the weights leave no GPU memory for a KV pool" in done.stderr
    done = essim("serve", "chat-service", *FEW, "--set", "model.tp=2")
    assert done.returncode == 2
    assert "an all-reduce has no price" in done.stderr


def test_a_scenario_with_traffic_runs_as_one_batch_too() -> None:
    done = essim("run", "chat-service")
    assert done.returncode == 0, done.stderr
    assert "decode_tokens_per_s" in done.stdout


def test_the_schema_knows_the_keys_of_serving() -> None:
    found = json.loads(essim("schema").stdout)
    assert {"traffic", "slo", "server", "plan", "workload"} <= set(found["properties"])
    assert "think_s" in found["$defs"]["Traffic"]["properties"]
