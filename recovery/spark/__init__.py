"""recovery.spark: what a run left on disk, judged by an engine that had no part in it."""

from __future__ import annotations
