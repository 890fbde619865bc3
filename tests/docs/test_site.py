"""The documentation builds strictly, its links resolve, and it loads nothing from other sites."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
# (element, attribute) whose address a browser fetches when it shows the page.
FETCHED = {
    ("audio", "src"),
    ("embed", "src"),
    ("iframe", "src"),
    ("img", "src"),
    ("image", "href"),
    ("object", "data"),
    ("script", "src"),
    ("source", "src"),
    ("use", "href"),
    ("video", "src"),
}
FETCHED_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "dns-prefetch"}
EXTERNAL_STYLE = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])\s*(?:https?:)?//")


class Page(HTMLParser):
    """A page's links, the files that it loads, and the anchors that links can point to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.classes: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.classes.update(values.get("class", "").split())
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and FETCHED_LINKS & set(values.get("rel", "").split()):
            self.loads.append(values["href"])
        self.loads += [
            values[name] for element, name in FETCHED if element == tag and name in values
        ]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the docs extra is not installed")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_each_page_of_docs_is_built(site, pages):
    for source in (ROOT / "docs").glob("*.md"):
        stem = source.stem
        assert (site / "index.html" if stem == "index" else site / stem / "index.html") in pages


def test_each_internal_link_leads_to_a_page_and_an_anchor(site, pages):
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchors = pages[target].anchors if target in pages else {""}
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in anchors):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert not broken


def test_a_page_loads_nothing_from_elsewhere(site, pages):
    loaded = {
        f"{path.relative_to(site)}: {address}"
        for path, page in pages.items()
        for address in page.loads
        if urlsplit(address).netloc
    }
    assert not loaded
    # The theme fetches Mermaid from a CDN for pages with such a diagram.
    assert not any("mermaid" in page.classes for page in pages.values())
    styled = [*site.rglob("*.css"), *site.rglob("*.svg"), *pages]
    assert not [path for path in styled if EXTERNAL_STYLE.search(path.read_text())]
