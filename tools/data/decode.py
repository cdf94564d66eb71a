"""Image file -> RGB picture, or one error that names the file.

What each kind of picture becomes (the format is told by the content, never by the file's suffix):

    Pillow mode                 RGB pixels
    RGB, RGBX                   as stored (Pillow has already reduced 16-bit RGB to its high byte)
    L, 1                        the grey value three times (1 bit: 0 or 255)
    P                           palette colours; transparency dropped
    LA, PA, RGBA, RGBa          alpha dropped, not composited onto a background
    CMYK, YCbCr, LAB, HSV       Pillow's own conversion (inverted Adobe CMYK included)
    I;16, I;16B, I;16L, I;16N   16-bit grey: round(v * 255 / 65535), never clipped
    I                           the same, for Pillow versions that read 16-bit grey as I; values outside 0..65535
                                have no fixed scale and are refused
    F                           0..1 times 255 if no value is above 1, else 0..255 as it is, rounded; anything else
                                is refused
    several frames              the first one
    EXIF orientation            ignored, as in the reference (torchvision's ImageFolder does not rotate)
"""

import os
import struct
import warnings
import zlib

import numpy as np
from errors import UserError
from PIL import Image

# The formats of the suffixes a class folder is searched for. Pillow knows forty more; some of them start other
# programs (EPS) and none belongs in an image data set.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

# What Pillow's plugins raise on broken files besides OSError (which covers UnidentifiedImageError).
_BROKEN = (OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, EOFError, MemoryError,
           struct.error, zlib.error, Image.DecompressionBombError)


class ImageError(UserError):
    """A file that cannot be used as an image; the text is one line with the path and the reason."""


def decode_rgb(path):
    """Read the image at `path` and return a loaded PIL.Image of mode RGB, no file left open.

    Raises ImageError for a file that is missing, unreadable, empty, of no accepted format, cut short, broken,
    larger than Pillow's decompression limit, or whose grey values have no fixed scale.
    """
    try:
        with open(path, "rb") as file, warnings.catch_warnings():
            # All that Pillow's readers say this way is about metadata ("Corrupt EXIF data", which a few ImageNet
            # files carry, and the like), or an error follows. Once per image and epoch it would bury the log.
            warnings.simplefilter("ignore", UserWarning)
            # Between one and two times its limit Pillow warns, above that it raises: only the error counts.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(file, formats=FORMATS)
            image.load()
            return _to_rgb(image)
    except _BROKEN as error:
        raise ImageError(f"{os.fspath(path)}: {_reason(path, error)}") from error


def _reason(path, error):
    """Say in words why `error` arose for `path`."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "is a folder, not an image file"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if isinstance(error, Image.UnidentifiedImageError):
        if os.path.getsize(path) == 0:
            return "the file is empty"
        return f"not a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image, or its header is broken"
    if isinstance(error, Image.DecompressionBombError):
        return f"too many pixels, refused as a decompression bomb ({error})"
    return f"broken image ({type(error).__name__}: {error})"


def _to_rgb(image):
    """Apply the table at the head of this file to a loaded picture."""
    if image.mode == "RGB":
        return image
    if image.mode == "I" or image.mode.startswith("I;16"):
        return _grey(_scale_16_bit(np.asarray(image).astype(np.int64)))
    if image.mode == "F":
        return _grey(_scale_float(np.asarray(image)))
    return image.convert("RGB")


def _grey(values):
    return Image.fromarray(values.astype(np.uint8)).convert("RGB")


def _scale_16_bit(values):
    """[H, W] integers 0..65535 -> 0..255. 65535 = 255 * 257, and 257 is odd, so the rounding is exact."""
    low, high = values.min(), values.max()
    if low < 0 or high > 65535:
        raise ValueError(f"grey values {low}..{high} are outside 0..65535; save the image with 8 or 16 bits")
    return (values + 128) // 257


def _scale_float(values):
    """[H, W] floats in 0..1 or 0..255 -> 0..255."""
    low, high = values.min(), values.max()
    # Written so that NaN is refused too.
    if not (low >= 0 and high <= 255):
        raise ValueError(f"float grey values {low}..{high} are outside 0..1 and 0..255; save the image with 8 bits")
    return np.rint(values * 255 if high <= 1 else values)
