"""``python -m essim``."""

from essim.cli.app import app

app(prog_name="essim")
