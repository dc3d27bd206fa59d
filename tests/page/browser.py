"""A real browser for the tests of the page: Debian's Chromium without a window, driven by Playwright."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.gates import HANG_S

SCREENSHOTS = "BACKEDGE_SCREENSHOTS"
"""The environment variable that names the folder for screenshots and measurements. Without it, none are kept."""

PROGRAMS = ("chromium", "google-chrome", "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
TIMEOUT_MS = 1_000 * HANG_S
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def program() -> str:
    """The browser of this machine."""
    for name in PROGRAMS:
        if (found := shutil.which(name)) is not None:
            return found
    raise FileNotFoundError(
        "these tests open the live page in Chromium, and there is none: make setup installs it by apt as root; "
        "otherwise: sudo apt-get install chromium (macOS: brew install --cask google-chrome)"
    )


@contextmanager
def started() -> Generator[Browser]:
    """A browser, for as long as the block."""
    # As root, Chromium has no sandbox; the only pages that it opens are ours.
    options = ["--no-sandbox", "--disable-dev-shm-usage"] if os.geteuid() == 0 else []
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program(), args=options)
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """One window on one page. What it says on its console, and whatever it asks of another host, is an error.

    `faults`: these errors, in order.
    """

    def __init__(self, browser: Browser, address: str, *, scheme: Any = "light", phone: bool = False) -> None:
        self.faults: list[str] = []
        size: Any = PHONE if phone else DESKTOP
        self._context: BrowserContext = browser.new_context(
            viewport=size, color_scheme=scheme, is_mobile=phone, has_touch=phone, reduced_motion="reduce"
        )
        self._context.set_default_timeout(TIMEOUT_MS)
        self.page: Page = self._context.new_page()
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda said: self.faults.append(said.text) if said.type == "error" else None)
        self.page.on("request", lambda asked: self._check_host(asked.url, address))
        self.page.goto(address)

    def _check_host(self, asked: str, address: str) -> None:
        ours = re.match("http://[^/]+/|file:.*", address)
        if ours is None or not asked.startswith((ours[0], "data:")):
            self.faults.append(f"asks {asked}")

    def close(self) -> None:
        """Close the window. Raises if anything went wrong in it."""
        self._context.close()
        assert not self.faults, self.faults

    def cells(self, table: str, column: int) -> list[str]:
        """The texts of a column of a table."""
        return self.page.locator(f"#{table} tbody tr td:nth-child({column})").all_inner_texts()

    def keep(self, name: str) -> None:
        """Keep a screenshot of the whole page, if a folder for them is named."""
        if (folder := os.environ.get(SCREENSHOTS)) is not None:
            self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)

    def violations(self) -> list[str]:
        """What axe-core has to say against the page as it is."""
        self.page.evaluate(AXE_SCRIPT)
        # Its own scrolling would move the page under a test that goes on.
        found: Mapping[str, Any] = self.page.evaluate(
            "rules => axe.run(document, { runOnly: rules, resultTypes: ['violations'] })", RULES
        )
        return [
            f"{violation['id']}: {violation['help']}: {node['html']}"
            for violation in found["violations"]
            for node in violation["nodes"]
        ]
