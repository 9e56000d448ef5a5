"""Seeds for benchmarks, derived from the commit so that no result can be picked by hand."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path


def commit_hash() -> str:
    """Return the hash of the checked-out commit, or ``BENCH_COMMIT`` where git is absent.

    Raises:
        RuntimeError: neither git nor the variable can tell the commit.
    """
    if given := os.environ.get("BENCH_COMMIT"):
        return given
    root = Path(__file__).resolve().parent.parent
    reply = subprocess.run(  # fixed words, no foreign text
        ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    if reply.returncode != 0:
        raise RuntimeError("no git commit to derive seeds from: set BENCH_COMMIT to a commit hash")
    return reply.stdout.strip()


def commit_seed(case: str) -> int:
    """Return a 63-bit seed from the commit hash and the name of a case."""
    digest = hashlib.sha256(f"{commit_hash()}/{case}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
