"""Measure the scan of a folder with 1,000 GGUF files, each with the small model's real header."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import servers
from localllm.runtime.models.catalog import scan

FILES = 1000
HEADER_BYTES = 2 << 20


def fill(folder: Path, model: Path) -> None:
    """Write sparse copies: the header's bytes, then a hole up to the real size."""
    size = model.stat().st_size
    with model.open("rb") as source:
        header = source.read(HEADER_BYTES)
    for number in range(FILES):
        with (folder / f"model-{number:04}.gguf").open("wb") as copy:
            copy.write(header)
            copy.truncate(size)


def main() -> None:
    model = servers.default_model()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder, model)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            catalog = scan(folder)
            times.append(time.perf_counter() - start)
        valid = sum(entry.valid for entry in catalog.entries)
    if valid != FILES:
        sys.exit(f"error: {valid} of {FILES} files were read as valid")
    print(f"scan of {FILES} GGUF files: {statistics.median(times):.2f} s (aim: at most 1 s)")


main()
