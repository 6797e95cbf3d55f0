"""Write the histogram of a sample of document lengths that ships with meshwright.

    python tools/length_histogram.py wikipedia_flexsp_1M_lengths.npz profiles/catalogue/lengths/wikipedia.yaml

The sample is an array `lengths` of tokens per document. Bins grow by a factor, and each counts its documents at their
mean length, so tokens are kept to within half a token per document.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

RATIO = 1.03  # of the ends of a bin
SOURCE = "AFDWang/Hetu-Galvatron@flexsp galvatron/datasets/wikipedia.txt: tokens of 1,000,000 documents of Wikipedia"


def histogram(lengths: np.ndarray) -> dict[int, int]:
    """Mean length of each bin -> its documents."""
    bins = np.floor(np.log(lengths) / np.log(RATIO)).astype(np.int64)
    out: dict[int, int] = {}
    for members in (lengths[bins == at] for at in np.unique(bins)):
        mean = round(float(members.mean()))
        out[mean] = out.get(mean, 0) + len(members)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sample", type=Path)
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    lengths = np.load(given.sample)["lengths"].astype(np.int64)
    lines = [f"# {SOURCE}", f"# Written by tools/length_histogram.py: bins of ratio {RATIO}. tokens: documents"]
    lines += [f"{length}: {count}" for length, count in histogram(lengths).items()]
    given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
