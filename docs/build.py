"""Write the docs' tables and figures: ``python docs/build.py``, ``--check`` only compares.

What stands between ``<!-- made: NAME arguments -->`` and ``<!-- end -->`` is what the function NAME
of a module in ``docs/made`` returns: a text stays in its line, a list is lines of their own.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from made import chains, errors, fidelity, kernels, pictures, steps, transfer, tutorial, zoo

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MADE = re.compile(r"(<!-- made: (.+?) -->)(.*?)(<!-- end -->)", re.DOTALL)
INLINE_FIRST = re.compile(r"^\s*([-*] )?<!-- made: [^>]+ -->.+<!-- end -->", re.MULTILINE)

Argument = str | int | float


def functions(modules: list[ModuleType]) -> dict[str, Callable[..., str | list[str]]]:
    """Return the public functions of modules by name."""
    return {
        name: thing
        for module in modules
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", "") == module.__name__
    }


FUNCTIONS = functions([chains, errors, fidelity, kernels, pictures, steps, transfer, tutorial, zoo])


def argument(text: str) -> Argument:
    """Return an argument of a marker: a number where it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def made(call: str) -> str:
    """Return what stands between a marker and its end."""
    name, *words = call.split()
    if name not in FUNCTIONS:
        sys.exit(f"made: {name}: no function of docs/made. Hint: {', '.join(sorted(FUNCTIONS))}.")
    named = dict(word.split("=", 1) for word in words if "=" in word)
    result = FUNCTIONS[name](
        *(argument(word) for word in words if "=" not in word),
        **{key: argument(text) for key, text in named.items()},
    )
    return result if isinstance(result, str) else "\n\n" + "\n".join(result) + "\n\n"


def page(file: Path) -> str:
    """Return a page with everything that is made, made anew."""
    text = file.read_text()
    if lost := INLINE_FIRST.search(text):
        # Markdown takes a line that begins with a comment for HTML.
        sys.exit(f"{file.name}: {lost[0].strip()}: a figure cannot begin a line. Hint: join it up.")
    return MADE.sub(lambda found: found[1] + made(found[2]) + found[4], text)


def main(check: bool) -> int:
    """Write what differs, or only name it; return the exit code."""
    texts = {file: page(file) for file in PAGES} | pictures.files()
    changed = [
        file for file, text in texts.items() if not file.exists() or file.read_text() != text
    ]
    for file in changed:
        print(f"{file.relative_to(ROOT)}: {'differs from the data' if check else 'written'}")
        if check:
            before = MADE.findall(file.read_text()) if file.exists() else []
            for old, new in zip(before, MADE.findall(texts[file]), strict=False):
                if old != new:
                    print(f"  {old[1]}: {old[2].strip()} -> {new[2].strip()}")
        else:
            file.write_text(texts[file])
    if check and changed:
        print("Hint: `make docs` writes them.")
    return int(check and bool(changed))


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # Tables with doubled rows warn; tests of the tables hold that.
    sys.exit(main("--check" in sys.argv[1:]))
