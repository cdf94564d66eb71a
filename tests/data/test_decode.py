"""Every kind of picture becomes RGB, every broken file one line that names it."""

import gc
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from data.decode import FORMATS, ImageError, decode_rgb
from data.transforms import EvalTransform, TrainTransform
from errors import UserError
from PIL import Image, ImageFile

BROKEN = {
    "truncated_jpeg.jpg": "truncated",
    "truncated_image.png": "truncated",
    "decompression_bomb.gif": "decompression bomb",
    "zero_bytes.JPEG": "empty",
}


def picture(width=40, height=30):
    noise = np.random.RandomState(0).randint(0, 256, (5, 6, 3)).astype("uint8")
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def pixels(path):
    return np.asarray(decode_rgb(path)).astype(int)


@pytest.mark.parametrize("mode, suffix", [
    ("L", "png"), ("L", "jpg"), ("1", "png"), ("P", "png"), ("P", "gif"), ("LA", "png"), ("RGBA", "png"),
    ("RGBA", "webp"), ("RGB", "jpg"), ("RGB", "bmp"), ("RGB", "ppm"), ("L", "pgm"), ("RGB", "tif"), ("CMYK", "jpg"),
    ("CMYK", "tif"), ("YCbCr", "tif"), ("LAB", "tif"), ("RGBX", "tif"),
])
def test_modes_equal_pillow_convert(tmp_path, mode, suffix):
    image = picture()
    image = image.convert(mode)
    path = tmp_path / f"a.{suffix}"
    image.save(path)
    with Image.open(path) as stored:
        expected = np.asarray(stored.convert("RGB"))
    result = decode_rgb(path)
    assert result.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(result), expected)


def test_alpha_is_dropped_not_composited(tmp_path):
    colour = np.full((4, 4, 4), (200, 100, 50, 0), np.uint8)
    Image.fromarray(colour).save(tmp_path / "clear.png")
    assert (pixels(tmp_path / "clear.png") == (200, 100, 50)).all()


def test_palette_transparency_without_warning(tmp_path):
    path = tmp_path / "p.png"
    image = picture().convert("P")
    image.save(path, transparency=bytes(range(256)))
    with Image.open(path) as stored, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = np.asarray(stored.convert("RGB"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(pixels(path), expected)


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_16_bit_grey_is_scaled_not_clipped(tmp_path, suffix):
    values = np.array([[0, 128, 129, 255], [256, 32768, 65406, 65535]], np.uint16)
    path = tmp_path / f"deep.{suffix}"
    Image.fromarray(values).save(path)
    expected = np.rint(values.astype(float) * 255 / 65535).astype(int)
    np.testing.assert_array_equal(pixels(path), np.repeat(expected[..., None], 3, axis=2))


def test_big_endian_16_bit_tiff(tmp_path):
    values = np.array([[0, 257, 65535]], ">u2")
    Image.fromarray(values).save(tmp_path / "be.tif")
    assert pixels(tmp_path / "be.tif")[0, :, 0].tolist() == [0, 1, 255]


@pytest.mark.parametrize("values, expected", [
    (np.array([[0, 514, 65535]], np.int32), [0, 2, 255]),
    (np.array([[0.0, 0.5, 1.0]], np.float32), [0, 128, 255]),
    (np.array([[0.0, 99.6, 255.0]], np.float32), [0, 100, 255]),
])
def test_modes_i_and_f(tmp_path, values, expected):
    Image.fromarray(values).save(tmp_path / "x.tif")
    assert pixels(tmp_path / "x.tif")[0, :, 0].tolist() == expected


@pytest.mark.parametrize("values", [
    np.array([[0, 70000]], np.int32), np.array([[-1, 7]], np.int32), np.array([[0, 256.5]], np.float32),
    np.array([[0, np.nan]], np.float32), np.array([[-0.1, 1]], np.float32),
])
def test_values_without_a_scale_are_refused(tmp_path, values):
    path = tmp_path / "x.tif"
    Image.fromarray(values).save(path)
    with pytest.raises(ImageError, match="x.tif.*outside"):
        decode_rgb(path)


@pytest.mark.parametrize("actual, name", [("PNG", "a.JPEG"), ("GIF", "b.jpg"), ("WEBP", "c.jpg"), ("JPEG", "d.png")])
def test_content_decides_not_the_suffix(tmp_path, actual, name):
    picture().save(tmp_path / name, format=actual)
    assert decode_rgb(tmp_path / name).size == (40, 30)


def test_first_frame_of_an_animation(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert (pixels(tmp_path / "a.gif") == (255, 0, 0)).all()


def test_exif_rotation_is_ignored(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    picture().save(tmp_path / "turned.jpg", exif=exif)
    assert decode_rgb(tmp_path / "turned.jpg").size == (40, 30)


def test_corrupt_exif_is_silent(tmp_path):
    exif = Image.Exif()
    exif[0x010E] = "a long description " * 20
    exif[0x011A] = 72.0
    path = tmp_path / "a.jpg"
    picture().save(path)
    # Without the JFIF block Pillow looks for the resolution in the EXIF block, and finds it cut short.
    block = b"Exif\0\0" + exif.tobytes()[6:40]
    content = path.read_bytes()
    start = 4 + int.from_bytes(content[4:6], "big")
    path.write_bytes(content[:2] + b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block + content[start:])
    with pytest.warns(UserWarning), Image.open(path) as image:
        image.load()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = warnings.filters[:]
        assert decode_rgb(path).size == (40, 30)
        assert warnings.filters == before


def test_truncated_jpeg_names_the_file(tmp_path):
    path = tmp_path / "cut.jpg"
    picture(200, 200).save(path)
    path.write_bytes(path.read_bytes()[:path.stat().st_size * 6 // 10])
    with pytest.raises(ImageError, match="cut.jpg.*truncated"):
        decode_rgb(path)
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


def test_pixel_limit_is_pillows_error_limit(tmp_path, monkeypatch):
    path = tmp_path / "big.png"
    picture(40, 30).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 700)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode_rgb(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 599)
    with pytest.raises(ImageError, match="big.png: too many pixels"):
        decode_rgb(path)


@pytest.mark.parametrize("name, content, reason", [
    ("missing.jpg", None, "no such file"),
    ("empty.jpg", b"", "the file is empty"),
    ("text.jpg", b"hello", "not a JPEG"),
    ("script.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a JPEG"),
    ("header.png", b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR", "broken"),
    ("header.jpg", b"\xff\xd8\xff\xe0\x00\x10JFIF", "broken"),
])
def test_unusable_files_give_one_line(tmp_path, name, content, reason):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ImageError, match=reason) as caught:
        decode_rgb(path)
    assert isinstance(caught.value, UserError)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_is_not_an_image(tmp_path):
    with pytest.raises(ImageError, match="is a folder"):
        decode_rgb(tmp_path)


def test_files_are_closed(tmp_path):
    good, bad = tmp_path / "a.gif", tmp_path / "b.png"
    picture().save(good)
    picture().save(bad)
    bad.write_bytes(bad.read_bytes()[:200])
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    kept = [decode_rgb(good) for _ in range(5)]
    for _ in range(5):
        with pytest.raises(ImageError):
            decode_rgb(bad)
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(image.copy().size == (40, 30) for image in kept)


def test_reference_files_as_their_manifest_says(shared_dir):
    """Each is decoded, and taken by both transforms, or refused by name; none is silently something else."""
    folder = shared_dir / "data" / "nasty"
    names = [line.split("\t")[0] for line in (folder / "manifest.tsv").read_text().splitlines()[1:]]
    assert len(names) == 16 and set(BROKEN) < set(names)
    evaluate, train = EvalTransform(64), TrainTransform(64)
    for name in names:
        if name in BROKEN:
            with pytest.raises(ImageError, match=f"{name}.*{BROKEN[name]}"):
                decode_rgb(folder / name)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            image = decode_rgb(folder / name)
        with Image.open(folder / name) as stored, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = np.asarray(stored.convert("RGB"))
        np.testing.assert_array_equal(np.asarray(image), expected, err_msg=name)
        for array in (evaluate(image), train(image, np.random.default_rng(0))):
            assert array.shape == (64, 64, 3) and array.dtype == np.uint8, name


def test_no_deprecated_pillow_names(root, tmp_path):
    picture().save(tmp_path / "a.png")
    code = (
        "import sys; sys.path.insert(0, 'tools')\n"
        "import numpy as np\n"
        "from data.decode import decode_rgb\n"
        "from data.transforms import EvalTransform, TrainTransform\n"
        f"image = decode_rgb({str(tmp_path / 'a.png')!r})\n"
        "EvalTransform(32)(image); EvalTransform(32, resize='squash')(image)\n"
        "for seed in range(8): TrainTransform(32)(image, np.random.default_rng(seed))\n"
    )
    done = subprocess.run([sys.executable, "-W", "error::DeprecationWarning", "-c", code], cwd=root,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_formats_are_known_to_pillow():
    Image.init()
    assert set(FORMATS) <= set(Image.OPEN)
