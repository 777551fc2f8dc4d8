"""Links of pages hold in the repository; mkdocs checks those of the site, where the lab's pages are among docs/."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATTERNS = ("*.md", "docs/**/*.md", "lab/*.md", "lab/docs/**/*.md", "tests/support/*.md", "examples/**/*.md")


def linked(page: Path) -> set[str]:
    """Paths that a page links to, as it writes them, without links to the web and within the page."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return {name for name in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if not re.match(r"[a-z]+:", name)}


def test_each_link_of_a_page_is_to_a_file_of_the_repository() -> None:
    pages = [page for pattern in PATTERNS for page in ROOT.glob(pattern)]
    links = [(page, name) for page in pages for name in linked(page)]
    assert len(links) > 100
    assert [(page, name) for page, name in links if not page.parent.joinpath(name).exists()] == []
