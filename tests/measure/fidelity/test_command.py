"""What the command says of bad input, before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is an extra")

from decodes import essim


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model", "none.gguf"), "none.gguf: there is no such file or folder\n"),
        (
            ("--budgets", "64,many"),
            "--budgets: '64,many' is no list of whole numbers. Such as 64,128\n",
        ),
        (("--decoded", "2048"), "--decoded: must be less than --context\n"),
    ],
)
def test_bad_options_are_named(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    done = essim("fidelity", "--out", "out", *options, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, message)
    assert list(tmp_path.iterdir()) == []
