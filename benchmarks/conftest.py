"""One table of ratios at the end: they hold on a noisy machine, as times do not."""

from __future__ import annotations

import pytest

ROWS = pytest.StashKey[list[tuple[str, str, str]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []


@pytest.fixture
def ratio(request: pytest.FixtureRequest):
    """Return a function that adds a row: what was measured, the ratio, and what it is made of."""

    def add(what: str, value: str, made_of: str) -> None:
        request.config.stash[ROWS].append((what, value, made_of))

    return add


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    rows = config.stash[ROWS]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
    terminalreporter.section("ratios")
    for what, value, made_of in rows:
        terminalreporter.line(f"{what:{widths[0]}}  {value:>{widths[1]}}  {made_of}")
