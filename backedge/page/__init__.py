"""backedge.page: the live page, which shows what runs are doing and what is in their cuts, and steers them.

`page_server.py` serves it, `page_source.py` finds what it shows, and `assets/` has the page itself: plain HTML, CSS and
JavaScript of our own, without a build step and without requests to anyone else.
"""
