"""``python -m essim``."""

from essim.cli import app

app(prog_name="essim")
