"""Take the pictures of the pages that `tests/web` made into the documentation.

    .venv/bin/python -m pytest tests/web && .venv/bin/python -m docs.pictures

The tests write each page in both themes below `build/pages`. Here they get a palette of 128 colours, which is a third
of the size, and a page that shows them: `docs/web-ui-pictures.md`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent.parent
MADE = ROOT / "build" / "pages"
KEPT = ROOT / "docs" / "images" / "pages"
PAGE = ROOT / "docs" / "web-ui-pictures.md"
_COLOURS = 128
#: Titles, in the order of the page, by the names that `tests/web/test_every_page.py` gives.
SHOWN = {
    "home": "Home",
    "project": "A project",
    "runs": "The runs of a project",
    "experiment": "An experiment",
    "bands": "Its curves by group",
    "trials": "Its trials",
    "search": "Its search, decision by decision",
    "hyperparameters": "Its hyperparameters",
    "timeline": "Its slots over time",
    "history": "Its history",
    "code": "Its code",
    "logs": "A log",
    "trial": "A trial",
    "launch": "A launch with its plan",
    "queue": "The queue",
    "tasks": "Tasks",
    "cluster": "The cluster",
    "slots": "Slots over time",
    "workspace": "A workspace",
    "users": "Administration",
    "components": "All components",
}
HEAD = """# Pictures of the pages

Each page in both themes, as the tests see it. What to do with them: [web-ui.md](web-ui.md).
"""


def main() -> None:
    """Write the pictures and their page."""
    missing = [name for name in SHOWN for theme in ("light", "dark") if not (MADE / f"{name}-{theme}.png").is_file()]
    if missing:
        sys.exit(f"{MADE} has no pictures of {', '.join(missing)}: run the tests first (python -m pytest tests/web)")
    KEPT.mkdir(exist_ok=True)
    parts = [HEAD]
    for name, title in SHOWN.items():
        for theme in ("light", "dark"):
            with Image.open(MADE / f"{name}-{theme}.png") as picture:
                few = picture.convert("RGB").quantize(
                    _COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
                )
                few.save(KEPT / f"{name}-{theme}.png", optimize=True)
        rows = [f"![{title}, {theme}](images/pages/{name}-{theme}.png)" for theme in ("light", "dark")]
        parts.append(f"## {title}\n\n" + "\n\n".join(rows) + "\n")
    PAGE.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
