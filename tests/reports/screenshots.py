"""Pictures of every page in both themes and in a narrow window, to look at.

``python tests/reports/screenshots.py FOLDER [PAGE...]``, default all; without a browser it says so
and does nothing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from browser import absent, pictured

ROOT = Path(__file__).parents[2]
REAL = ROOT / "reports" / "data" / "h200-decode" / "decode.csv"
DENSE = "selector={kind: dense}"
BATCHES = "sweep={workload.batch: [1, 2, 4, 8, 16]}"
PROMPTS = "workload.input_tokens: [8192, 16384, 40960, 65536]"
BUDGETS = "selector.top_pages: [16, 32, 64, 128]"
ROUTINGS = "routing: [gpu-target, gpu-target-fused, cpu-mid, gpu_side-mid-fused]"
# Name -> what writes the page.
PAGES = {
    "sweep": ("sweep", "earlyselect-40k"),
    "sweep-quest": ("sweep", "quest-32k"),
    "sweep-dense": (
        "sweep",
        "earlyselect-40k",
        "--set",
        "selector={kind: dense}",
        "--set",
        BATCHES,
    ),
    "sweep-prompt": ("sweep", "earlyselect-40k", "--set", f"sweep={{{ROUTINGS}, {PROMPTS}}}"),
    "sweep-budget": ("sweep", "earlyselect-40k", "--set", f"sweep={{{ROUTINGS}, {BUDGETS}}}"),
    "run": ("run", "earlyselect-40k"),
    "run-batch-8": ("run", "earlyselect-40k", "--set", "workload.batch=8"),
    "run-one-lane": ("run", "earlyselect-40k", "--set", "routing=gpu-target"),
    "figure2": ("figure2",),
    "published": ("published",),
    "rank": ("rank", "zoo"),
    "compare": ("compare", "predicted.csv", str(REAL), "--trace-predicted", "predicted.json"),
}
WIDTHS = (1366, 390)
# No GPU draws a picture higher than this.
HIGHEST = 16000


def main(folder: Path, names: list[str]) -> None:
    """Write pages, and their pictures beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    essim(folder, "sweep", "validate-h200", "--out", "predicted.csv")
    step = ("--set", "routing=cpu-mid", "--step", "4")
    essim(folder, "run", "validate-h200", *step, "--trace", "predicted.json")
    for name in names or PAGES:
        page = folder / f"{name}.html"
        essim(folder, *PAGES[name], "--html", page.name)
        for width in WIDTHS:
            for theme in ("light", "dark"):
                picture = folder / f"{name}-{width}-{theme}.png"
                if theme == "light":
                    height = int(pictured(page, picture, theme, width)["height"])
                said = pictured(page, picture, theme, width, min(height, HIGHEST))
                print(picture.name, said, flush=True)


def essim(folder: Path, *arguments: str) -> None:
    """Run a command of this checkout in a folder."""
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from essim.cli.app import app; app()"
    command = [sys.executable, "-c", code, str(ROOT), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"essim {' '.join(arguments)}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    if absent():
        print(f"no screenshots: {absent()}")
    else:
        main(Path(sys.argv[1]).resolve(), sys.argv[2:])
