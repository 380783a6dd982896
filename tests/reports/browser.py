"""A page in a real browser, for tests."""

from __future__ import annotations

import base64
import json
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((found for name in BROWSERS if (found := shutil.which(name))), None)
FLAGS = (
    *("--headless", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--window-size=1366,900", "--virtual-time-budget=20000", "--enable-logging=stderr", "--v=0"),
    *("--hide-scrollbars", "--allow-file-access-from-files"),
)
# A window of Chromium is never narrower than 500 pixels, a frame in it may be.
_FRAME = """<!DOCTYPE html><body style="margin:0"><iframe id="f" src="page.html#{theme}"
style="border:0;width:{width}px;height:{height}px"></iframe><script>
const seen = setInterval(() => {{
  const root = document.getElementById("f").contentDocument.documentElement;
  if (!root.dataset.drawn) return;
  clearInterval(seen);
  const boxes = (part, what) => [...part.querySelectorAll(what)]
    .map((found) => found.getBoundingClientRect()).filter((box) => box.width && box.height);
  const meet = (a, b) =>
    a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  let overlaps = 0;
  for (const figure of root.querySelectorAll("figure"))
    for (const legend of boxes(figure, ".legend"))
      overlaps += boxes(figure, "{texts}").filter((box) => meet(legend, box)).length;
  Object.assign(document.documentElement.dataset, root.dataset, {{
    overlaps, height: root.querySelector("main").offsetHeight, needs: root.scrollWidth }});
}}, 100)</script>"""
# What a legend may not lie on.
_TEXTS = "h3, figcaption, .modebar-group, .g-xtitle, .g-ytitle, .g-y2title, .xtick, .ytick, .bars"
_COUNT = """<!DOCTYPE html><body><script>
const image = new Image();
image.onload = () => {{
  const canvas = Object.assign(document.createElement("canvas"),
    {{ width: image.width, height: image.height }});
  const drawn = canvas.getContext("2d");
  drawn.drawImage(image, 0, 0);
  const found = {{}}, {{ data }} = drawn.getImageData(0, 0, image.width, image.height);
  for (let i = 0; i < data.length; i += 4) {{
    const colour = (data[i] << 16) + (data[i + 1] << 8) + data[i + 2];
    found[colour] = (found[colour] || 0) + 1;
  }}
  document.body.textContent = JSON.stringify(found);
}};
image.src = "data:image/png;base64,{png}";</script>"""


def dumped(page: Path | None, *flags: str, fragment: str = "") -> subprocess.CompletedProcess[str]:
    """Let the browser print a page's DOM."""
    files = {} if page is None else {"page.html": page.read_bytes()}
    return _browse(files, f"page.html{fragment}" if files else "", *flags)


def _browse(
    files: Mapping[str, bytes], address: str, *flags: str, picture: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Open one of some files; Chromium refuses root, who runs it as nobody."""
    assert BROWSER
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder, user = Path(name), {}
        for file, content in files.items():
            (folder / file).write_bytes(content)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        shoot = [f"--screenshot={folder}/picture.png"] if picture else []
        home = f"--user-data-dir={folder}/home"
        where = f"{folder.as_uri()}/{address}" if address else "about:blank"
        done = subprocess.run(
            [BROWSER, *FLAGS, *flags, *shoot, home, "--dump-dom", where],
            capture_output=True,
            text=True,
            timeout=180,
            env=os.environ | {"HOME": name},
            **user,
        )
        if picture:
            done.check_returncode()
            shutil.copy(folder / "picture.png", picture)
        return done


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


def pictured(
    page: Path, picture: Path, theme: str, width: int = 1366, height: int = 900
) -> dict[str, str]:
    """Take a picture of a page; return what it says of itself, and what was seen in it.

    ``height`` and ``needs`` are in pixels: how high its content is, and how wide a window it would
    fill. ``overlaps`` counts titles, ticks and bars that a legend lies on.
    """
    frame = _FRAME.format(theme=theme, width=width, height=height, texts=_TEXTS).encode()
    files = {"page.html": page.read_bytes(), "frame.html": frame}
    size = f"--window-size={max(width, 500)},{height}"
    done = _browse(files, "frame.html", size, picture=picture)
    (root,) = re.findall(r"<html[^>]*>", done.stdout)
    return dict(re.findall(r'data-(\w+)="([^"]*)"', root))


def colours(picture: Path) -> dict[str, int]:
    """Return how many pixels of a picture have each colour, such as ``#e3172d``."""
    png = base64.b64encode(picture.read_bytes()).decode()
    done = _browse({"count.html": _COUNT.format(png=png).encode()}, "count.html")
    (found,) = re.findall(r"<body>(\{.*\})</body>", done.stdout)
    return {f"#{int(code):06x}": count for code, count in json.loads(found).items()}
