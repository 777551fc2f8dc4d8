"""Pages of lab/docs in the site of docs/, as if they were in that folder: a hook of mkdocs (mkdocs.yml).

Links are written as they hold in the repository, `../lab/docs/lab.md` from a page of docs/ and `../../docs/trust.md`
from one of lab/docs; in the site both folders are one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

LAB: Final = Path(__file__).resolve().parent.parent / "lab" / "docs"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the lab's pages."""
    for path in sorted(LAB.rglob("*.md")):
        name = str(path.relative_to(LAB))
        files.append(File(name, str(LAB), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return a page with the links between the two folders as they are in one."""
    return markdown.replace("../lab/docs/", "").replace("../../docs/", "")
