"""A page in a real browser, for tests."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((found for name in BROWSERS if (found := shutil.which(name))), None)
FLAGS = (
    *("--headless", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--window-size=1366,900", "--virtual-time-budget=20000", "--enable-logging=stderr", "--v=0"),
)


def dumped(page: Path | None, *flags: str, fragment: str = "") -> subprocess.CompletedProcess[str]:
    """Let the browser print a page's DOM; Chromium refuses root, who runs it as nobody."""
    assert BROWSER
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        address, user = "about:blank", {}
        if page is not None:
            address = Path(shutil.copy(page, folder)).as_uri() + fragment
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        return subprocess.run(
            [BROWSER, *FLAGS, *flags, f"--user-data-dir={folder}/home", "--dump-dom", address],
            capture_output=True,
            text=True,
            timeout=180,
            env=os.environ | {"HOME": folder},
            **user,
        )


@cache
def absent() -> str:
    """Why no browser can be started here, or an empty string."""
    if BROWSER is None:
        return f"none of {BROWSERS} is on PATH"
    done = dumped(None)
    last = done.stderr.strip().splitlines()[-1:]
    return f"{BROWSER} does not start: {''.join(last)}" if done.returncode else ""


needs_browser = pytest.mark.skipif(bool(absent()), reason=absent())


def opened(page: Path, *flags: str, fragment: str = "") -> tuple[str, list[str]]:
    """Return the page's DOM after its scripts ran, and what they wrote to the console."""
    done = dumped(page, *flags, fragment=fragment)
    done.check_returncode()
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
