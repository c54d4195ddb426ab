"""mkdocs hook: links to files of the repository that are no pages of the site become their paths."""

from __future__ import annotations

import re
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\((?:\.\./)+((?:examples|deploy|tests|bench)[^)#]*|[A-Z]+\.md)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return _LINK.sub(lambda link: link[1] if link[1].strip("`") == link[2] else f"{link[1]} (`{link[2]}`)", markdown)
