"""The crawl as a spider of Scrapy, with the settings that ours has. `bench/crawl.py` has Scrapy run this file.

It finds links as ours does, so that both do the same work for a page. The proxy is that of the environment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import scrapy

from examples.cyclic.crawler import NAME, links_in, links_of
from examples.cyclic.small_web import seeds


class Pages(scrapy.Spider):
    name = NAME
    # RETRY_TIMES: after the first try.
    custom_settings = {"ROBOTSTXT_OBEY": True, "RETRY_TIMES": 3, "DOWNLOAD_DELAY": 0, "TELNETCONSOLE_ENABLED": False}  # noqa: RUF012

    async def start(self) -> AsyncIterator[Any]:
        # With start_urls, its own default, the first page would be fetched twice: as one and as a link.
        for url in seeds():
            yield scrapy.Request(url)

    def parse(self, response: Any) -> Iterator[Any]:
        found = links_in(response.text)
        yield {"url": response.url, "status": str(response.status), "links": len(found)}
        for link in links_of({"url": response.url, "links": found}):
            yield scrapy.Request(link["url"])
