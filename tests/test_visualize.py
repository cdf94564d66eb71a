"""The command that draws pictures: each kind, which file it writes and which it leaves alone, and mistakes."""

import re

import numpy as np
import pytest
from commands import SIZE, cut_short, make_folders, make_image, make_weights, mistake, process, run, settings, snapshot
from PIL import Image

SMALL = ("device=cpu", f"model.img_size={SIZE}", "model.num_classes=3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Weights at 16 px and a picture."""
    folder = tmp_path_factory.mktemp("visualize")
    make_weights(folder / "w")
    make_image(folder / "a.JPEG")
    return folder


@pytest.fixture(scope="module")
def words(folder):
    """What every call here names."""
    return (folder / "a.JPEG", "--weights", folder / "w", *SMALL)


def drawn(outcome, path, *parts):
    """The picture of a call that ended well."""
    assert outcome.code == 0 and outcome.err == "", outcome
    for part in parts:
        assert part in outcome.out, (part, outcome.out)
    with Image.open(path) as picture:
        picture.load()
        assert picture.format == "PNG" and picture.mode == "RGB"
        assert outcome.out.splitlines()[-1].endswith(f"{path.name} ({picture.width}x{picture.height})")
        return picture


# ---------------------------------------------------------------- what is drawn


def test_features(words, tmp_path):
    outcome = run("visualize", *words, "--kind", "features", "--output", tmp_path / "f.png")
    drawn(outcome, tmp_path / "f.png", "correlation", "standard deviation", "largest absolute value")
    rows = re.findall(r"^(\S+) +(\d+x\d+) +(\d+) ", outcome.out, re.MULTILINE)
    stages = [("attention1", "4x4", "64"), ("attention2", "2x2", "64"), ("project", "1x1", "256")]
    assert rows == [(f"tokens_to_token.{a}", b, c) for a, b, c in stages] + [
        (f"blocks.{block}", "1x1", "256") for block in range(7)
    ]


def test_fewer_channels_make_a_narrower_picture(words, tmp_path):
    sizes = [drawn(run("visualize", *words, "--kind", "features", "--channels", n, "--output", tmp_path / "f.png"),
                   tmp_path / "f.png").size for n in (6, 9)]  # fmt: skip
    # A map of 112 pixels, its frame and the gap.
    assert sizes[1][0] - sizes[0][0] == 3 * 128


def test_features_of_several_networks(words, tmp_path):
    make_folders(tmp_path / "train")
    make_folders(tmp_path / "val", count=1)
    more = {"train__epochs": 1, "train__max_steps": 1, "model__img_size": SIZE, "model__name": "mobilenet_v3"}
    assert run("train", *settings(tmp_path, tmp_path / "run", **more), "model.drop_path=0").code == 0
    more = ("--beside", tmp_path / "run", "--kind", "features", "--channels", 3, "--size", 32)
    outcome = run("visualize", *words, *more, "--output", tmp_path / "f.png")
    parts = ("\nt2t_vit_7, visualize0/w.pdparams at 32 px\n", "blocks.6", "\nmobilenet_v3, run/best", "blocks.16")
    drawn(outcome, tmp_path / "f.png", *parts)


def test_features_of_hardly_any_pixels(tmp_path, folder):
    make_weights(tmp_path / "w", name="mobilenet_v1")
    words = (folder / "a.JPEG", "--weights", tmp_path / "w", *SMALL, "model.name=mobilenet_v1", "model.drop_path=0")
    outcome = run("visualize", *words, "--kind", "features", "--size", 1, "--output", tmp_path / "f.png")
    drawn(outcome, tmp_path / "f.png", "1x1", " - ")


def test_attention(words, tmp_path):
    outcome = run("visualize", *words, "--kind", "attention", "--output", tmp_path / "a.png")
    few = drawn(outcome, tmp_path / "a.png", "rollout: own weight")
    rows = re.findall(r"^ +(\d) +(\d\.\d{4}) +(\d\.\d{4})  0, 0$", outcome.out, re.MULTILINE)
    assert [row[0] for row in rows] == list("0123456")
    # One patch and the class token share all there is.
    assert all(float(own) + float(patch) == pytest.approx(1, abs=2e-4) for _, own, patch in rows)
    outcome = run("visualize", *words, "--kind", "attention", "--heads", "--output", tmp_path / "h.png")
    assert drawn(outcome, tmp_path / "h.png").size != few.size


def test_tokens(words, tmp_path):
    outcome = run("visualize", *words, "--kind", "tokens", "--output", tmp_path / "t.png")
    drawn(outcome, tmp_path / "t.png", "windows of 7x7 every 4", "31x31", "token at row 0, column 0")


def test_another_size(folder, words, tmp_path):
    command = ("visualize", *words, "--kind", "tokens", "--output", tmp_path / "t.png", "--size")
    drawn(run(*command, 48), tmp_path / "t.png", "48x48 -> 12x12", "token at row 1, column 1")
    drawn(run(*command, 48, "--token", "2,0"), tmp_path / "t.png", "token at row 2, column 0: pixels of rows 18 to 48")
    drawn(run(*command, SIZE), tmp_path / "t.png", "16x16 -> 4x4")
    outcome = run("visualize", *words, "--kind", "features", "--output", tmp_path / "f.png", "--size", 64)
    drawn(outcome, tmp_path / "f.png", "blocks.6")
    assert re.search(r"^tokens_to_token.attention1 +16x16 +64 +\d+\.\d %", outcome.out, re.MULTILINE)


def test_tokens_of_hard_splits(folder, tmp_path):
    make_weights(tmp_path / "w", name="t2t_vit_14_wo_t2t")
    words = (folder / "a.JPEG", "--weights", tmp_path / "w", *SMALL, "model.name=t2t_vit_14_wo_t2t")
    outcome = run("visualize", *words, "--kind", "tokens", "--output", tmp_path / "p.png")
    drawn(outcome, tmp_path / "p.png", "windows of 16x16 every 16", "no token knows of other pixels")


def test_a_run_brings_its_settings(folder, tmp_path):
    make_folders(tmp_path / "train")
    make_folders(tmp_path / "val", count=1)
    more = {"train__epochs": 1, "train__max_steps": 1, "model__img_size": 32}
    assert run("train", *settings(tmp_path, tmp_path / "run", **more)).code == 0
    outcome = run("visualize", folder / "a.JPEG", "--weights", tmp_path / "run", "--kind", "attention",
                  "--output", tmp_path / "a.png")  # fmt: skip
    drawn(outcome, tmp_path / "a.png")


def test_a_network_without_tokens(words, tmp_path, monkeypatch):
    # Its layers are watched in tests/pictures; here it is what the command says of it.
    import pictures.watching as watching

    whole = watching.watch
    monkeypatch.setattr(watching, "watch", lambda *given: whole(*given)._replace(attention=[], splits=[]))
    for kind in ("attention", "tokens"):
        mistake(run("visualize", *words, "--kind", kind, "--output", tmp_path / "a.png"), kind, "use --kind features")
    drawn(run("visualize", *words, "--kind", "features", "--output", tmp_path / "f.png"), tmp_path / "f.png")


def test_the_same_picture_every_time(words, tmp_path):
    # In training mode dropout would draw anew.
    for name in ("a.png", "b.png"):
        more = ("model.drop_rate=0.5", "--size", 32, "--kind", "features", "--output", tmp_path / name)
        outcome = run("visualize", *words, *more)
        assert outcome.code == 0
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


# ---------------------------------------------------------------- which file


def test_the_default_name_is_in_the_current_folder(words, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = snapshot(folder)
    for kind in ("tokens", "attention"):
        drawn(run("visualize", *words, "--kind", kind), tmp_path / f"a-{kind}.png", f"written: a-{kind}.png (")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-attention.png", "a-tokens.png"]
    assert snapshot(folder) == before
    # Its own picture is made anew.
    assert run("visualize", *words, "--kind", "tokens").code == 0


def test_the_default_name_replaces_no_other_file(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for write in (lambda path: path.write_text("mine"), make_image, cut_short):
        write(tmp_path / "a-tokens.png")
        before = snapshot(tmp_path)
        mistake(run("visualize", *words, "--kind", "tokens"), tmp_path / "a-tokens.png", "--output")
        assert snapshot(tmp_path) == before
    # Named, it may be replaced.
    drawn(run("visualize", *words, "--kind", "tokens", "--output", "a-tokens.png"), tmp_path / "a-tokens.png")


def test_outputs_that_cannot_be(words, folder, tmp_path):
    command = ("visualize", *words, "--kind", "tokens", "--output")
    mistake(run(*command, tmp_path / "p.jpg"), "p.jpg", ".png")
    mistake(run(*command, folder / "w.pdparams"), "w.pdparams", ".png")
    mistake(run(*command, tmp_path / "absent" / "p.png"), tmp_path / "absent")
    mistake(run(*command, "~nobody-of-this-name/p.png"), "~nobody-of-this-name")
    mistake(run(*command, tmp_path / ("n" * 300) / "p.png"), "no such folder")
    mistake(run(*command, tmp_path / f"{'n' * 300}.png"), "n" * 300)
    (tmp_path / "folder.png").mkdir()
    mistake(run(*command, tmp_path / "folder.png"), "folder.png", "folder")
    image = make_image(tmp_path / "image.png")
    before = snapshot(tmp_path)
    words = (image, *command[2:-3])
    mistake(run("visualize", *words, "--kind", "tokens", "--output", image), image, "the image itself")
    (tmp_path / "link.png").symlink_to(image)
    mistake(run("visualize", *words, "--kind", "tokens", "--output", tmp_path / "link.png"), "the image itself")
    (tmp_path / "link.png").unlink()
    assert snapshot(tmp_path) == before


def test_a_call_that_fails_leaves_the_old_picture(words, tmp_path, monkeypatch):
    (tmp_path / "p.png").write_text("old")

    def full(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full)
    mistake(run("visualize", *words, "--kind", "tokens", "--output", tmp_path / "p.png"), "No space left", "p.png")
    assert [path.name for path in tmp_path.iterdir()] == ["p.png"] and (tmp_path / "p.png").read_text() == "old"


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(("more", "parts"), [
    ((), ("--kind",)),
    (("--kind", "all"), ("all", "features")),
    (("--kind", "features", "--heads"), ("--heads", "attention")),
    (("--kind", "attention", "--beside", "w"), ("--beside", "features")),
    (("--kind", "features", "--beside", "missing"), ("missing",)),
    (("--kind", "features", "--beside", "w", "--config", "c.yaml"), ("--config", "--beside")),
    (("--kind", "tokens", "--channels", "3"), ("--channels", "features")),
    (("--kind", "attention", "--token", "0,0"), ("--token", "tokens")),
    (("--kind", "features", "--channels", "0"), ("--channels", "0")),
    (("--kind", "features", "--channels", "x"), ("--channels", "x")),
    (("--kind", "tokens", "--token", "1,0"), ("--token 1,0", "0 to 0")),
    (("--kind", "tokens", "--token", "0"), ("--token 0", "ROW,COLUMN")),
    (("--kind", "tokens", "--token", "0,-1"), ("--token 0,-1", "ROW,COLUMN")),
    (("--kind", "tokens", "--size", "0"), ("--size 0",)),
    (("--kind", "tokens", "--size", "5000"), ("--size 5000", "2048")),
    (("--kind", "tokens", "--size", "100"), ("100", "multiple of 16")),
    (("--kind", "tokens", "b.jpg"), ("2 images",)),
    (("--kind", "tokens", "model.nam=x"), ("model.name",)),
    (("--kind", "tokens", "model.img_size=32"), ("model.img_size=16",)),
    (("--kind", "tokens", "--nonsense"), ("--nonsense",)),
])  # fmt: skip
def test_wrong_words(words, tmp_path, monkeypatch, more, parts):
    monkeypatch.chdir(tmp_path)
    mistake(run("visualize", *words, *more), *parts)
    assert not list(tmp_path.iterdir())


def test_images_and_weights_that_are_none(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rest = ("--kind", "features", "--weights", folder / "w", *SMALL)
    mistake(run("visualize", "absent.jpg", *rest), "absent.jpg", "no such file")
    mistake(run("visualize", folder, *rest), folder, "folder")
    mistake(run("visualize", *rest), "no images")
    broken = cut_short(tmp_path / "broken.JPEG")
    mistake(run("visualize", broken, *rest), broken)
    broken.unlink()
    absent = ("--weights", tmp_path / "absent")
    mistake(run("visualize", folder / "a.JPEG", "--kind", "features", *absent, *SMALL), "absent", "README.md")
    mistake(run("visualize", folder / "a.JPEG", *rest, "model.name=t2t_vit_14"), "14 blocks of width 384")
    assert not list(tmp_path.iterdir())


def test_as_a_process_elsewhere(words, tmp_path):
    outcome = process("visualize", *words, "--kind", "tokens", cwd=tmp_path, PYTHONIOENCODING="ascii:strict")
    assert outcome.code == 0 and outcome.err == "", outcome
    assert np.asarray(Image.open(tmp_path / "a-tokens.png")).std() > 10


def test_help():
    outcome = run("visualize", "--help")
    assert outcome.code == 0
    for word in ("IMG", "--kind", "--weights", "--output", "--heads", "--token", "--size"):
        assert word in outcome.out
