"""Serves a small web on loopback, as an HTTP proxy: six sites with robots.txt, redirects, failures and traps.

    python -m examples.cyclic.small_web

A page links to two others of its site, and some link to another site. Addresses with a session lead to the same page,
`/calendar/1/2/3` links to the next day for ever, `/old/7` has moved, and what is below `/private` is not for robots.
The first two requests for each eleventh page fail.
"""

from __future__ import annotations

import threading
from collections import Counter
from functools import cache
from typing import NamedTuple
from urllib.parse import urlsplit

from aiohttp import web

from examples.cyclic.loopback import serve

SITES = 6
ROBOTS = "User-agent: *\nDisallow: /private/\n"
FAILURES = 2


class Page(NamedTuple):
    """What a site has at an address. `moved`: where it has gone. `fails`: whether its first requests fail."""

    links: tuple[str, ...] = ()
    moved: str = ""
    fails: bool = False


def seeds(all_sites: bool = False) -> list[str]:
    """Where a crawl begins."""
    return [f"http://site{site}.example/page/0" for site in range(SITES if all_sites else 1)]


def page_at(url: str, size: int) -> Page | None:
    """What is there, if each site has `size` pages."""
    parts = urlsplit(url)
    home = f"http://{parts.netloc}"
    kind, _, rest = parts.path.strip("/").partition("/")
    if kind == "calendar":
        days = rest.split("/")
        return Page((f"{url}/{len(days) + 1}",))
    number = int(rest)
    if kind == "old":
        return Page(moved=f"{home}/page/{number}")
    if kind == "private":
        return Page()
    if number >= size:
        return None
    site = int(parts.netloc.removeprefix("site").removesuffix(".example"))
    links = [f"{home}/page/{next}" for next in (2 * number + 1, 2 * number + 2) if next < size]
    links += [f"{home}/page/{number // 2}?session={number}", f"{home}/old/{number // 3}"]
    links += [f"http://site{(site + number) % SITES}.example/page/{number // 5}"] if number % 5 == 0 else []
    links += [f"{home}/calendar/1", f"{home}/private/1"] if number == 3 else []
    return Page(tuple(links), fails=number % 11 == 10)


class SmallWeb:
    """Answers, and counts. `asked`: how often each page was asked for."""

    def __init__(self, size: int) -> None:
        self.asked = Counter[str]()
        self._size = size

    async def answer(self, sent: web.BaseRequest) -> web.Response:
        url = f"http://{sent.host}{sent.rel_url.path}"
        self.asked[url] += 1
        if url.endswith("/robots.txt"):
            return web.Response(text=ROBOTS)
        page = page_at(url, self._size)
        if page is None:
            return web.Response(status=404)
        if page.fails and self.asked[url] <= FAILURES:
            return web.Response(status=503)
        if page.moved:
            return web.Response(status=301, headers={"Location": page.moved})
        body = "\n".join(f'<a href="{link}">more</a>' for link in page.links)
        return web.Response(text=f"<html>{body}</html>", content_type="text/html")


@cache
def served(size: int) -> tuple[SmallWeb, str]:
    """A web of this process, which is started once for each size, and the address of its proxy."""
    made = SmallWeb(size)
    return made, serve(made.answer)


if __name__ == "__main__":
    from examples.cyclic.command_line import take_no_options

    take_no_options(__name__)
    print(f"a small web is behind the proxy {served(100)[1]} until Ctrl-C; it begins at {seeds()[0]}", flush=True)
    threading.Event().wait()
