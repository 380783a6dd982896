import pytest

from essim.methods.routing import PRESETS, Routing, expand_preset


def test_the_table_of_what_is_refused() -> None:
    allowed = set()
    for where in ("gpu", "gpu_side", "cpu"):
        for anchor in ("target", "in", "mid", "mix"):
            try:
                Routing(where=where, anchor=anchor)
            except ValueError:
                continue
            allowed.add((where, anchor))
    early = {"in", "mid", "mix"}
    assert allowed == (
        {("gpu", "target"), ("cpu", "target")}
        | {("gpu_side", anchor) for anchor in early}
        | {("cpu", anchor) for anchor in early}
    )


def test_a_refusal_says_why_and_what_is_allowed() -> None:
    with pytest.raises(ValueError, match=r"overlaps with nothing.*Anchors for gpu: target"):
        Routing(where="gpu", anchor="mid")


def test_every_preset_has_its_own_name() -> None:
    for name, fields in PRESETS.items():
        assert Routing(**fields).name == name
    with pytest.raises(ValueError, match=r"no routing 'cpu-midd'. Did you mean 'cpu-mid'\?"):
        expand_preset("cpu-midd")


def test_mix_is_mid_up_to_layer_20_for_32_layers() -> None:
    anchors = Routing(where="cpu", anchor="mix").anchors(32)
    assert anchors == ["mid"] * 20 + ["in"] * 11


def test_mix_needs_a_list_of_the_right_length_otherwise() -> None:
    with pytest.raises(ValueError, match="needs a 'mix' list of 27 anchors for 28 layers"):
        Routing(where="cpu", anchor="mix").anchors(28)
    routing = Routing(where="cpu", anchor="mix", mix=["mid", "in"])
    assert routing.anchors(3) == ["mid", "in"]
    with pytest.raises(ValueError, match="mix has 2 entries, but 27 layers are routed"):
        routing.anchors(28)
    with pytest.raises(ValueError, match="mix is given, but anchor is mid"):
        Routing(where="cpu", anchor="mid", mix=["mid"])
