"""Look at the pages of build/site as a reader does: too high, wider than a narrow screen; pictures of some.

    python .ci/look_at_site.py build/site [index.html ...]

It needs playwright, and chromium (apt-get install chromium). Pictures of the pages that are named lie beside the site,
in build/pictures: at 1280 and 390 pixels, light and dark. The exit status is 1 if a page is too high or too wide.
"""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTHS = (1280, 390)
HIGHEST = 8000  # pixels, at the first width


def problems(page, site: Path) -> list[str]:
    """Return a line for each page that is too high or too wide."""
    found = []
    for path in sorted(each for each in site.rglob("*.html") if "_static" not in each.parts):
        page.goto(path.as_uri(), wait_until="domcontentloaded")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            root = "document.documentElement"
            height, used = page.evaluate(f"[{root}.scrollHeight, {root}.scrollWidth]")
            if used > width:
                found.append(f"{path.relative_to(site)} is {used} pixels wide on a screen of {width}")
            if width == WIDTHS[0] and height > HIGHEST:
                found.append(f"{path.relative_to(site)} is {height} pixels high, more than {HIGHEST}: divide it")
    return found


def draw(browser, site: Path, names: list[str]) -> None:
    """Draw pages at both widths, light and dark."""
    folder = site.parent / "pictures"
    folder.mkdir(exist_ok=True)
    for name in names:
        for width in WIDTHS:
            for mode in ("light", "dark"):
                page = browser.new_page(viewport={"width": width, "height": 1000}, color_scheme=mode)
                page.goto((site / name).as_uri())
                page.screenshot(path=folder / f"{Path(name).stem}-{width}-{mode}.png", full_page=True)
                page.close()


if __name__ == "__main__":
    site = Path(sys.argv[1]).resolve()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        draw(browser, site, sys.argv[2:])
        lines = problems(browser.new_page(), site)
        browser.close()
    print("\n".join(lines) or "all pages are low and narrow enough")
    sys.exit(bool(lines))
