"""Write lit_data/digits/ from the digits that the scikit-learn wheel carries. Kept as the record of how they were made.

Users need not run it: its output ships with the project. It needs scikit-learn (1.9.1 was used), which the project
does not depend on, and gives the same pixels, names and lists on every run:

    python lit_data/make_digits.py
"""

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

ROOT = Path(__file__).resolve().parent / "digits"
VAL_EVERY = 5


def main():
    """Write one 8x8 8-bit greyscale PNG per digit and the two list files, ordered by class, then by index."""
    digits = load_digits()
    # The source counts ink in 0..16; 255/16 spreads it over the whole 8-bit range.
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    lines = {"train": [], "val": []}
    for label in range(10):
        (ROOT / "images" / str(label)).mkdir(parents=True, exist_ok=True)
        for position, index in enumerate(np.flatnonzero(digits.target == label)):
            name = f"images/{label}/{index:04d}.png"
            Image.fromarray(pixels[index]).save(ROOT / name, optimize=True)
            split = "val" if position % VAL_EVERY == VAL_EVERY - 1 else "train"
            lines[split].append(f"{name} {label}\n")
    for split, rows in lines.items():
        (ROOT / f"{split}_list.txt").write_text("".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
