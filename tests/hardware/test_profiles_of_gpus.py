"""Profiles by specification, and those made from numbers or from public tables."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from essim.errors import AbsentError, InputError
from essim.hardware.aiconfigurator import data_folder, newest
from essim.hardware.from_another import new_profile
from essim.hardware.import_tables import import_profile
from essim.hardware.profile import Sourced, find_profile, load_profile
from essim.step.kinds import Case, Point
from essim.step.price import SOURCES, CostModel
from essim.validate.carry import Laid, attention, gemms

EXCERPT = Path(__file__).parents[1] / "data" / "aiconfigurator-excerpt"
# Nominal TB/s and dense BF16 TFLOP/s of the datasheets.
NOMINAL = {
    "h100-sxm": (3.35, 989.4),
    "a100-sxm-80gb": (2.039, 312.0),
    "l40s": (0.864, 362.05),
    "b200": (8.0, 2250.0),
    "rtx-4090": (1.008, 165.2),
}


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hardware_profiles"


@pytest.fixture
def excerpt(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(EXCERPT))


def made(name: str, base: str, folder: Path, given: dict[str, str], **options) -> Path:
    fields = {"gpu": None, "cite": None, "date": None, "nominal": False} | options
    return new_profile(name, base, folder, given, **fields)


def imported(system: str, folder: Path, **options) -> tuple[Path, list[str]]:
    fields = {"name": None, "base": None, "framework": "vllm", "model": "llama-3.1-8b"}
    fields |= {"max_batch": 2, "folder": folder}
    return import_profile(system, **fields | options)


@pytest.mark.parametrize("name", NOMINAL)
def test_a_specified_gpu_has_no_times_but_those_of_its_reference(name: str) -> None:
    profile = load_profile(find_profile(name, Path()))
    assert profile.spec.name == name
    assert profile.tables == {}
    assert profile.spec.constants == {}
    assert profile.reference is not None
    assert profile.reference.spec.name == "h200-sxm"


@pytest.mark.parametrize("name", NOMINAL)
def test_rates_of_a_specified_gpu_are_below_the_nominal_ones(name: str) -> None:
    gpu = load_profile(find_profile(name, Path())).spec.gpu
    bandwidth, flops = NOMINAL[name]
    assert gpu.bandwidth_bytes_per_s.high <= bandwidth * 1e12
    assert gpu.bf16_flops_per_s.high <= flops * 1e12
    for rate in (gpu.bandwidth_bytes_per_s, gpu.bf16_flops_per_s):
        assert rate.low < rate.value < rate.high
        assert rate.source == "assumed"


@pytest.mark.parametrize("name", [*NOMINAL, "rtx-6000d-xeon-8481c"])
def test_nothing_of_a_specified_gpu_claims_to_be_measured(name: str) -> None:
    spec = load_profile(find_profile(name, Path())).spec
    parts = (spec.gpu, spec.cpu, spec.d2h, spec.h2d)
    numbers = [n for part in parts for n in vars(part).values() if isinstance(n, Sourced)]
    assert len(numbers) >= 11
    assert {number.source for number in numbers} == {"published", "assumed"}


def test_a_profile_is_made_from_a_few_numbers(here) -> None:
    numbers = {"bandwidth": "1.2 TB/s", "bf16": "200 TFLOP/s", "memory": "32 GiB"}
    file = made(
        "mine", "h100-sxm", here, numbers | {"link": "26 GB/s"}, cite="a datasheet", date="2025"
    )
    profile = load_profile(file)
    assert find_profile("mine", Path()).resolve() == file.resolve()
    gpu = profile.spec.gpu
    assert (gpu.name, gpu.memory_bytes.value) == ("mine", 32 * 2**30)
    assert gpu.bandwidth_bytes_per_s.value == 1.2e12
    assert gpu.bf16_flops_per_s.model_dump() == {
        **{"value": 2e14, "low": None, "high": None},
        **{"source": "published", "reference": "a datasheet", "date": "2025"},
    }
    assert profile.spec.d2h.bandwidth_bytes_per_s == profile.spec.h2d.bandwidth_bytes_per_s
    assert profile.spec.d2h.bandwidth_bytes_per_s.value == 26e9
    # Those of an H100 are not of this GPU.
    assert (gpu.fp8_flops_per_s, gpu.clock_hz) == (None, None)
    assert profile.spec.reference == "h200-sxm"


def test_what_is_not_given_is_assumed_to_be_as_it_was(here) -> None:
    old = load_profile(find_profile("h100-sxm", Path())).spec
    new = load_profile(made("mine", "h100-sxm", here, {"link": "26 GB/s"}, gpu="H100 PCIe")).spec
    assert new.gpu.name == "H100 PCIe"
    assert new.gpu.fp8_flops_per_s.value == old.gpu.fp8_flops_per_s.value
    assert new.gpu.clock_hz.value == 1980e6
    assert new.cpu.cores.source == "assumed"
    assert new.cpu.cores.reference == (
        "that of h100-sxm: NVIDIA DGX H100 datasheet, one socket of two"
    )
    assert new.d2h.bandwidth_bytes_per_s.source == "assumed"


def test_a_datasheets_rates_are_more_than_kernels_get(here) -> None:
    """An H200's own nominal rates become what was measured of it."""
    numbers = {"bandwidth": "4.8 TB/s", "bf16": "989 TFLOP/s", "fp8": "1979 TFLOP/s"}
    numbers["memory"] = "141 GB"
    new = load_profile(made("mine", "h200-sxm", here, numbers, nominal=True)).spec
    old = load_profile(find_profile("h200-sxm", Path())).spec
    for key in ("bandwidth_bytes_per_s", "bf16_flops_per_s", "fp8_flops_per_s"):
        given = getattr(new.gpu, key)
        assert given.value == pytest.approx(getattr(old.gpu, key).value, rel=1e-3)
        assert given.low < given.value < given.high
    assert new.gpu.memory_bytes.value == 141e9
    assert new.reference == "h200-sxm"


@pytest.mark.parametrize(
    ("name", "base", "given", "message"),
    [
        ("h100-sxm", "h200-sxm", {}, "h100-sxm.yaml: a profile of this name is there"),
        ("a/b", "h200-sxm", {}, "NAME: 'a/b' is no name of a profile"),
        ("a.yaml", "h200-sxm", {}, "NAME: 'a.yaml' is no name"),
        ("a", "h20-sxm", {}, "--from: no hardware profile 'h20-sxm'"),
        ("a", "h200-sxm", {"bandwidth": "3.35"}, "--bandwidth: '3.35' is not a quantity"),
        ("a", "h200-sxm", {"bf16": "3 TB/s"}, "--bf16: unknown unit 'TB/s' for FLOP/s"),
        ("a", "h200-sxm", {"link": "0 GB/s"}, "--link: '0 GB/s' is not above zero"),
        ("a", "h200-sxm", {"fp16": "3 TB/s"}, "no number is called fp16. Did you mean 'bf16'?"),
    ],
)
def test_what_cannot_be_is_refused_by_name(here, name, base, given, message: str) -> None:
    with pytest.raises(InputError) as error:
        made(name, base, here, given)
    assert message in str(error.value)
    assert not here.exists()


def test_a_bad_date_is_refused(here) -> None:
    with pytest.raises(InputError, match=r"d2h\.bandwidth_bytes_per_s\.date: must be a date"):
        made("mine", "h200-sxm", here, {"link": "26 GB/s"}, date="spring")
    assert not here.exists()


def test_public_tables_become_a_profiles_own(here, excerpt) -> None:
    file, said = imported("h100_sxm", here)
    profile = load_profile(file)
    assert profile.spec.name == "h100-sxm-vllm"
    assert profile.spec.reference == "h200-sxm"
    assert profile.spec.gpu == load_profile(find_profile("h100-sxm", Path())).spec.gpu
    assert profile.spec.provenance["package"] == "aiconfigurator-core 0.12.0"
    assert str(profile.spec.provenance["licence"]).startswith("Apache-2.0, Copyright (c)")
    gemm = profile.tables["gemm"].grids
    assert set(gemm) == {
        (n, k, dtype)
        for n, k in (("512", "512"), ("4096", "4096"), ("6144", "4096"))
        for dtype in ("bf16", "fp8")
    }
    assert gemm["4096", "4096", "bf16"].at([1]).mean_s == pytest.approx(15.0453e-6)
    assert gemm["4096", "4096", "fp8"].at([1024]).mean_s == pytest.approx(39.1662e-6)
    assert "casting" in profile.spec.tables["gemm"].note
    assert said == [
        "gemm: 42 points; left out: dtype fp8_block (21)",
        "attn_dense: 8 points; left out: another head shape (56), "
        "another dtype, window or beam (42), past the grid of batches up to 2 (6)",
        "attn_prefill: 3 points; left out: another head shape (40), "
        "several prompts at once (7), another dtype, window or beam (30)",
    ]


def test_a_public_table_says_whose_it_is(here, excerpt) -> None:
    spec = load_profile(imported("h100_sxm", here)[0]).spec.tables["attn_dense"]
    assert spec.source == "published"
    assert spec.reference == (
        "aiconfigurator-core 0.12.0, h100_sxm/attention/vllm/0.24.0/generation_attention_perf"
        ".parquet: VLLM 0.24.0, vllm_flash_attn_fa3, on NVIDIA H100 80GB HBM3"
    )
    assert spec.holds_for == {
        "heads": [32],
        "kv_heads": [8],
        "head_dim": [128],
        "kv_dtype": ["bf16"],
    }


def test_attention_is_cut_to_the_contexts_that_all_its_batches_have(here, excerpt) -> None:
    """Batch 16 and 128 stop at 4096 tokens, 1 and 2 go on to 65536."""
    ticks = {}
    for name, most in (("few", 2), ("many", 128)):
        profile = load_profile(imported("h100_sxm", here, name=name, max_batch=most)[0])
        (grid,) = profile.tables["attn_dense"].grids.values()
        ticks[name] = [axis.tolist() for axis in grid.axes]
    assert ticks["few"] == [[1, 2], [1024, 2048, 4096, 65536]]
    assert ticks["many"] == [[1, 2, 16, 128], [1024, 2048, 4096]]
    assert grid.at([16, 2048]).mean_s == pytest.approx(57.152e-6)


def test_an_imported_table_prices_as_published(here, excerpt) -> None:
    from essim.methods.routing import Routing
    from essim.methods.selectors import SELECTORS
    from essim.model.shape import PRESETS

    profile = load_profile(imported("h100_sxm", here)[0])
    routing = Routing(where="gpu", anchor="target")
    case = Case(PRESETS["llama-3.1-8b"], SELECTORS["dense"](kind="dense"), routing)
    costs = CostModel(profile, case)
    for kind, seconds in (("gemm_o", 15.0453e-6), ("attn_dense", 16.8747e-6)):
        price = costs.price(kind, Point(1, 1, np.array([4096])))
        assert price.mean_s[0] == pytest.approx(seconds, rel=1e-5)
        assert SOURCES[price.rank[0]] == "published"


def test_columns_differ_by_file_and_a_model_may_have_no_rows(here, excerpt) -> None:
    """The A100's files have no windows and no FP8; nothing has the heads of Qwen2.5-7B."""
    file, said = imported("a100_sxm", here, model="qwen2.5-7b")
    assert set(load_profile(file).spec.tables) == {"gemm"}
    assert said == [
        "gemm: 2 points",
        "attn_dense: 0 points; left out: another head shape (4)",
        "attn_prefill: 0 points; left out: another head shape (4)",
    ]


def test_the_newest_version_is_read(excerpt) -> None:
    file = newest(data_folder(), "h100_sxm", "sglang", "gemm")
    assert file.parts[-2] == "0.5.14"  # not 0.5.6.post2


@pytest.mark.parametrize(
    ("system", "options", "message"),
    [
        ("h100", {}, "SYSTEM: no system 'h100'. Did you mean 'h100_sxm'?"),
        ("h100_sxm", {"framework": "trtllm"}, "--framework: h100_sxm has no tables of 'trtllm'"),
        ("h100_sxm", {"model": "llama-3.1-9b"}, "--model: no model 'llama-3.1-9b'. Did you mean"),
        ("h100_sxm", {"name": "b200"}, "b200.yaml: a profile of this name is there"),
        ("h100_sxm", {"base": "h10"}, "--from: no hardware profile 'h10'"),
    ],
)
def test_an_import_says_what_it_does_not_know(here, excerpt, system, options, message) -> None:
    with pytest.raises(InputError) as error:
        imported(system, here, **options)
    assert message in str(error.value)
    assert not here.exists()


def test_a_gpu_without_a_shipped_profile_needs_one(here, excerpt, monkeypatch) -> None:
    monkeypatch.delitem(import_profile.__globals__["PROFILES"], "h100_sxm")
    with pytest.raises(InputError, match=r"--from: no shipped profile is of h100_sxm\. Make one"):
        imported("h100_sxm", here)
    assert imported("h100_sxm", here, base="l40s")[0].name == "l40s-vllm.yaml"


def test_without_the_package_its_extra_is_named(here, monkeypatch) -> None:
    monkeypatch.setattr("essim.hardware.aiconfigurator.find_spec", lambda name: None)
    with pytest.raises(AbsentError, match=r"pip install 'essim\[aiconfigurator\]'"):
        imported("h100_sxm", here)


def test_prices_are_laid_beside_what_others_measured() -> None:
    """What is 3/4 of the published time is 25 % too fast."""
    profile = load_profile(find_profile("h200-sxm", Path()))
    row = {"gemm_dtype": "bfloat16", "n": 6144, "k": 4096}
    times_s = profile.tables["gemm"].grids["6144", "4096", "bf16"].at([[1, 128]]).mean_s
    rows = [
        row | {"m": m, "latency": time_s * 1e3 / 0.75}
        for m, time_s in zip((1, 128), times_s.tolist(), strict=True)
    ]
    rows.append(row | {"m": 1, "latency": 1.0, "gemm_dtype": "fp8"})
    rows.append(row | {"m": 1, "latency": 1.0, "n": 128})  # a cache may hold it
    found = gemms(profile, rows)
    assert set(found) == {"gemm, rows <= 64", "gemm, rows > 64"}
    for laid in found.values():
        assert laid.ratios == pytest.approx([0.75])
        assert laid.line().split()[:6] == ["1", "-25.0", "25.0", "25.0", "0.0", "0.0"]
        assert laid.line().endswith("measured 100%")


def test_bias_is_taken_out_within_one_source() -> None:
    laid = Laid(np.array([1.0, 1.25, 1.5]), Counter({"roofline": 3}))
    numbers = laid.line().split()
    # Errors of 0, 25 and 50 %; against the median of 1.25, of 20, 0 and 20 %.
    assert numbers[:6] == ["3", "25.0", "25.0", "45.0", "20.0", "20.0"]


def test_attention_is_laid_by_head_shape() -> None:
    profile = load_profile(find_profile("h200-sxm", Path()))
    row = {"kv_cache_dtype": "bfloat16", "isl": 1, "step": 4095, "batch_size": 1}
    llama = row | {"num_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "latency": 0.02}
    window = llama | {"window_size": 128}
    large = llama | {"batch_size": 16, "latency": 0.1}  # 268 MB of KV
    found = attention(profile, [llama, window, large])
    assert {group: len(laid.ratios) for group, laid in found.items()} == {
        "attn_dense": 2,
        "attn_dense of models": 1,
    }
    assert set(found["attn_dense"].sources) <= {"measured", "interpolated"}


def test_times_faster_than_memory_are_kept_apart() -> None:
    """268 MB in 40 us are 6.7 TB/s, of an H200's 4.8; the other head shape is as it may be."""
    profile = load_profile(find_profile("h200-sxm", Path()))
    row = {"kv_cache_dtype": "bfloat16", "isl": 1, "step": 4095, "batch_size": 16}
    wrong = row | {"num_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "latency": 0.04}
    right = wrong | {"num_heads": 64, "latency": 0.1}
    found = attention(profile, [wrong, wrong | {"step": 1023, "latency": 0.1}, right])
    assert {group: len(laid.ratios) for group, laid in found.items()} == {
        "attn_dense, cannot be": 2,
        "attn_dense": 1,
        "attn_dense of models": 1,
    }


def test_a_table_with_times_faster_than_memory_is_left_out(here, excerpt) -> None:
    """Of a GPU with a tenth of the bandwidth, the H100's times cannot be."""
    made("slow", "l40s", here, {"bandwidth": "200 GB/s"})
    file, said = imported("h100_sxm", here, base="slow", name="imported")
    assert set(load_profile(file).spec.tables) == {"gemm", "attn_prefill"}
    assert "not believed: some are faster than memory (14)" in said[1]
