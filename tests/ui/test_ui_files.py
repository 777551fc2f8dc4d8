"""The files of the page: no text becomes HTML, nothing comes from elsewhere, `make ui` builds what is committed."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from isthmus.cli import ui

ROOT = Path(__file__).resolve().parents[2]
STATIC = Path(ui.__file__).parent / "static"
OURS = sorted(path for path in STATIC.iterdir() if not path.name.startswith("vendor"))
BUILT = ("vendor.js", "vendor.css", "vendor.LICENSE")
HTML_FROM_TEXT = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySetInnerHTML|srcdoc|setHTMLUnsafe|DOMParser"
    r"|createContextualFragment|\beval\b|new Function|javascript:|\bhref=\$|\bsrc=\$"
)


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_no_text_becomes_html_or_code(path: Path) -> None:
    assert HTML_FROM_TEXT.findall(path.read_text()) == []


@pytest.mark.parametrize("path", [*OURS, STATIC / "vendor.js", STATIC / "vendor.css"], ids=lambda path: path.name)
def test_nothing_is_loaded_from_elsewhere(path: Path) -> None:
    text = path.read_text().replace("http://www.w3.org/", "")
    assert re.findall(r"https?://[\w.]+", text) == []
    assert re.findall(r"@import|url\(", text) == []


def test_no_element_has_a_style_or_handler_of_its_own_in_markup() -> None:
    assert re.findall(r"<style|<script>|\son\w+=|style=", (STATIC / "index.html").read_text()) == []


def test_the_page_is_below_500_kb_compressed() -> None:
    assert sum(len(gzip.compress(path.read_bytes())) for path in STATIC.iterdir()) < 500_000


def test_the_licence_of_every_library_is_with_it() -> None:
    text = (STATIC / "vendor.LICENSE").read_text()
    for name in ("preact", "htm", "uplot"):
        assert re.search(rf"(?m)^{name} \d+\.\d+\.\d+ \(", text)
    assert text.count("Permission is hereby granted") + text.count("Apache License") >= 3


if shutil.which("npm"):  # no skip where it is not: users and CI need none

    @pytest.mark.ui
    def test_make_ui_builds_what_is_committed(tmp_path: Path) -> None:
        copy = tmp_path / "ui"
        shutil.copytree(ROOT / "tools/ui", copy, ignore=shutil.ignore_patterns("node_modules"))
        subprocess.run([copy / "build", tmp_path / "static"], check=True, timeout=240, capture_output=True)
        for name in BUILT:
            assert (tmp_path / "static" / name).read_bytes() == (STATIC / name).read_bytes(), name
