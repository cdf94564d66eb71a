"""Paddle and Pillow in a fresh process, in the order in which the commands load them."""

import subprocess
import sys

from PIL import Image

CODE = """
import sys
sys.path.insert(0, sys.argv[1])
from startup import import_paddle
import_paddle()
from data.decode import decode_rgb
for path in sys.argv[2:]:
    print(decode_rgb(path).size)
"""


def test_images_can_be_decoded_after_paddle_was_imported(root, tmp_path):
    """Paddle 2.6 carries a zlib; a Pillow that is loaded after it takes that one and fails on every PNG."""
    files = [tmp_path / f"image.{suffix}" for suffix in ("png", "jpg", "webp", "gif", "tif", "bmp")]
    for file in files:
        Image.new("RGB", (9, 7), "red").save(file)
    files.append(next((root / "lit_data" / "digits" / "images").rglob("*.png")))
    command = [sys.executable, "-c", CODE, str(root / "tools"), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split("\n")[:-1] == ["(9, 7)"] * 6 + ["(8, 8)"]
