"""Write the photos of lit_data/ILSVRC2012/ and lit_data/cat.jpg. Kept as the record of how they were made.

Users need not run it: its output ships with the project. It needs Pillow and two folders of sample images, those of
the scikit-image 0.26.0 and matplotlib 3.11.2 wheels:

    python lit_data/make_photos.py SITE/skimage/data SITE/matplotlib/mpl-data/sample_data
"""

import sys
from pathlib import Path

from PIL import Image, ImageOps

ROOT = Path(__file__).resolve().parent
LONGEST = 500
# file, wnid, class id, box of the val view as fractions (left, top, right, bottom)
PHOTOS = [
    ("chelsea.png", "n02123159", 282, (0.0, 0.0, 0.88, 1.0)),
    ("grace_hopper.jpg", "n03763968", 652, (0.0, 0.0, 1.0, 0.92)),
    ("camera.png", "n04485082", 872, (0.25, 0.15, 1.0, 1.0)),
    ("coffee.png", "n07920052", 967, (0.1, 0.0, 0.9, 0.95)),
]


def shrunk(image):
    """`image` with its longest side at most LONGEST; never enlarged."""
    image.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS)
    return image


def main(folders):
    """Write each photo as the train image and a mirrored crop of it as the val image, then the two list files."""
    lines = {"train": [], "val": []}
    for name, wnid, label, (left, top, right, bottom) in PHOTOS:
        source = next(path for path in (Path(folder) / name for folder in folders) if path.is_file())
        image = Image.open(source)
        image.load()
        width, height = image.size
        box = (round(left * width), round(top * height), round(right * width), round(bottom * height))
        views = {"train": image.copy(), "val": ImageOps.mirror(image.crop(box))}
        for split, view in views.items():
            entry = f"{wnid}/{source.stem}{'_view' if split == 'val' else ''}.JPEG"
            target = ROOT / "ILSVRC2012" / split / entry
            target.parent.mkdir(parents=True, exist_ok=True)
            shrunk(view).save(target, quality=90)
            lines[split].append(f"{entry} {label}\n")
        if name == "chelsea.png":
            shrunk(image.copy()).save(ROOT / "cat.jpg", quality=90)
    for split, rows in lines.items():
        (ROOT / "ILSVRC2012" / f"{split}_list.txt").write_text("".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
