"""The prediction command: classes, names, scores, and pictures that are none."""

import json
import re
import subprocess
import sys

import numpy as np
import paddle
import pytest
from commands import (
    SIZE,
    cut_short,
    last_line,
    make_folders,
    make_image,
    make_weights,
    manifest,
    mistake,
    process,
    run,
    settings,
)
from models import build_model
from PIL import Image

SMALL = ("device=cpu", f"model.img_size={SIZE}", "model.num_classes=3", "data.class_names=null")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Weights for three and for 1000 classes, without a run, and some pictures."""
    folder = tmp_path_factory.mktemp("predict")
    make_weights(folder / "three")
    make_weights(folder / "imagenet", num_classes=1000)
    make_folders(folder / "pictures", names=("one", "two"), count=2)
    return folder


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A short run on class folders: its folder."""
    folder = tmp_path_factory.mktemp("run")
    make_folders(folder / "train")
    make_folders(folder / "val", count=1, seed=9)
    more = {"train__epochs": 1, "train__max_steps": 1, "data__crop_pct": 0.8, "data__interpolation": "bilinear"}
    assert run("train", *settings(folder, folder / "run", **more)).code == 0
    return folder / "run"


def objects(outcome):
    """What --json printed, an object for each line."""
    return [json.loads(line) for line in outcome.out.splitlines()]


# ---------------------------------------------------------------- what is shown


def test_ids_only_without_names(folder):
    picture = folder / "pictures" / "one" / "0.JPEG"
    outcome = run("predict", picture, "--weights", folder / "three", *SMALL)
    assert outcome.code == 0 and outcome.err == "", outcome
    first, second, *rows = outcome.out.splitlines()
    assert first == str(picture) and re.fullmatch(r"class_id is: [012]", second)
    fields = [re.fullmatch(r" +(\d)  ([01]\.\d{4})", row).groups() for row in rows]
    assert fields[0][0] == second[-1], "the best comes first"
    scores = [float(score) for _, score in fields]
    assert scores == sorted(scores, reverse=True) and sum(scores) == pytest.approx(1, abs=2e-4)


def test_names_and_wordnet_ids_of_the_shipped_table(folder, root):
    outcome = run("predict", root / "lit_data" / "cat.jpg", "--weights", folder / "imagenet", *SMALL[:2])
    rows = re.findall(r"^ +(\d+)  [01]\.\d{4}  (n\d{8})  (\S.*)$", outcome.out, re.MULTILINE)
    assert len(rows) == 5
    table = (root / "lit_data" / "imagenet_classes.tsv").read_text(encoding="utf-8").splitlines()
    assert all("\t".join(row) in table for row in rows)


def test_names_of_a_run_are_its_folders(run_folder, folder):
    outcome = run("predict", folder / "pictures", "--weights", run_folder)
    assert outcome.code == 0 and set(re.findall(r"\d  ([a-z]+)$", outcome.out, re.MULTILINE)) == {"ant", "bee", "cow"}


def test_own_names(folder, tmp_path):
    (tmp_path / "names.txt").write_text("große Katze\n小猫\nc\n", encoding="utf-8")
    words = ("predict", folder / "pictures" / "one", "--weights", folder / "three", *SMALL[:3])
    outcome = run(*words, f"data.class_names={tmp_path / 'names.txt'}", "--json")
    assert {row["name"] for row in objects(outcome)[0]["top"]} == {"große Katze", "小猫", "c"}
    (tmp_path / "names.txt").write_text("a\nb\n", encoding="utf-8")
    mistake(run(*words, f"data.class_names={tmp_path / 'names.txt'}"), tmp_path / "names.txt", "2 lines, expected 3")


def test_json_is_for_machines(folder, run_folder):
    outcome = run("predict", folder / "pictures", "--weights", run_folder, "--json", "--topk", "2")
    found = objects(outcome)
    assert [item["image"] for item in found] == [str(path) for path in sorted((folder / "pictures").rglob("*.JPEG"))]
    for item in found:
        assert set(item) == {"image", "class_id", "top"} and len(item["top"]) == 2
        assert set(item["top"][0]) == {"class_id", "score", "name"}
        assert item["class_id"] == item["top"][0]["class_id"]
        assert 1 >= item["top"][0]["score"] >= item["top"][1]["score"] >= 0
        assert item["top"][0]["name"] == ("ant", "bee", "cow")[item["class_id"]]


@pytest.mark.parametrize(("topk", "shown"), [(1, 1), (2, 2), (3, 3), (5, 3), (1000, 3)])
def test_topk_ends_at_the_number_of_classes(folder, topk, shown):
    picture = folder / "pictures" / "one" / "0.JPEG"
    outcome = run("predict", picture, "--weights", folder / "three", *SMALL, "--json", "--topk", topk)
    assert len(objects(outcome)[0]["top"]) == shown


def test_characters_that_the_terminal_lacks(folder, tmp_path):
    (tmp_path / "names.txt").write_text("große Katze\n小猫\nc\n", encoding="utf-8")
    picture = make_image(tmp_path / "日本.png")
    words = (picture, "--weights", folder / "three", *SMALL[:3], f"data.class_names={tmp_path / 'names.txt'}")
    for more in ((), ("--json",)):
        outcome = process("predict", *words, *more, PYTHONIOENCODING="ascii:strict")
        assert outcome.code == 0 and outcome.err == "", outcome
    assert objects(outcome)[0]["image"] == str(picture)


# ---------------------------------------------------------------- which pictures


def test_files_folders_and_settings_in_any_order(folder, monkeypatch):
    monkeypatch.chdir(folder)
    words = ("pictures/two/1.JPEG", *SMALL[:2], "pictures/one", "--weights", "three", *SMALL[2:], "pictures/two/0.JPEG")
    outcome = run("predict", *words, "--json")
    names = ["two/1.JPEG", "one/0.JPEG", "one/1.JPEG", "two/0.JPEG"]
    assert [item["image"] for item in objects(outcome)] == [f"pictures/{name}" for name in names]


def test_more_pictures_than_a_batch(folder, tmp_path):
    make_folders(tmp_path / "many", names=("a",), count=35)
    found = objects(run("predict", tmp_path / "many", "--weights", folder / "three", *SMALL, "--json"))
    assert len({item["image"] for item in found}) == len(found) == 35
    alone = objects(run("predict", found[20]["image"], "--weights", folder / "three", *SMALL, "--json"))[0]
    assert alone["class_id"] == found[20]["class_id"]
    assert alone["top"][0]["score"] == pytest.approx(found[20]["top"][0]["score"], abs=1e-5)


def test_hidden_files_and_others_are_no_pictures(folder, tmp_path):
    make_image(tmp_path / "a.PNG")
    make_image(tmp_path / ".ipynb_checkpoints" / "b.png")
    (tmp_path / "notes.txt").write_text("c", encoding="utf-8")
    found = objects(run("predict", tmp_path, "--weights", folder / "three", *SMALL, "--json"))
    assert [item["image"] for item in found] == [str(tmp_path / "a.PNG")]


def test_a_picture_whose_name_looks_like_a_setting(folder, tmp_path, monkeypatch):
    make_image(tmp_path / "train.lr=1.png")
    monkeypatch.chdir(tmp_path)
    assert run("predict", "train.lr=1.png", "--weights", folder / "three", *SMALL).code == 0


def test_kinds_of_pictures_give_what_their_rgb_form_gives(folder, tmp_path):
    source = Image.open(make_image(tmp_path / "source.png"))
    kinds = [("L", "jpg"), ("LA", "png"), ("P", "png"), ("RGBA", "png"), ("CMYK", "jpg"), ("1", "png"), ("P", "gif")]
    pictures = []
    for mode, suffix in kinds:
        # Named as something else: the content decides.
        path = tmp_path / f"{mode}-{suffix}.JPEG"
        source.convert(mode).save(path, {"jpg": "JPEG"}.get(suffix, suffix))
        Image.open(path).convert("RGB").save(tmp_path / "rgb.png")
        pictures += [path, (tmp_path / "rgb.png").rename(tmp_path / f"{mode}-{suffix}-rgb.png")]
    outcome = run("predict", *pictures, "--weights", folder / "three", *SMALL, "--json")
    assert outcome.code == 0 and outcome.err == ""
    tops = [item["top"] for item in objects(outcome)]
    assert tops[::2] == tops[1::2] and len(tops) == 2 * len(kinds)
    assert len({str(top) for top in tops}) > 2


def test_broken_pictures_do_not_hide_the_good_ones(folder, tmp_path):
    good = [make_image(tmp_path / name, seed) for seed, name in enumerate(("a.JPEG", "c.JPEG"))]
    broken = [cut_short(tmp_path / "b.JPEG"), tmp_path / "d.JPEG"]
    broken[1].touch()
    outcome = run("predict", tmp_path, "--weights", folder / "three", *SMALL, "--json")
    assert outcome.code == 2
    assert [item["image"] for item in objects(outcome)] == [str(path) for path in good]
    lines = outcome.err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"error: {path}: ") for line, path in zip(lines, broken))


@pytest.mark.filterwarnings("error::UserWarning:PIL")
def test_reference_files_as_their_manifest_says(folder, shared_dir):
    accepted, refused = manifest(shared_dir)
    assert len(accepted) == 12 and len(refused) == 4
    words = ("--weights", folder / "three", *SMALL, "--json")
    outcome = run("predict", *accepted, *words)
    assert outcome.code == 0 and outcome.err == "" and len(objects(outcome)) == 12
    for file in refused:
        outcome = run("predict", file, *words)
        mistake(outcome, file)
        assert outcome.out == ""


# ---------------------------------------------------------------- how


def test_scores_are_those_of_the_evaluation_transform(run_folder, folder, monkeypatch):
    # The run's own settings reach predict: val prints the transform that predict is seen to use.
    import wiring
    from data.decode import decode_rgb
    from data.transforms import EvalTransform
    from weights.loading import load_weights
    from weights.paddle_file import read_weights

    used = []
    build = wiring.eval_transform
    monkeypatch.setattr(wiring, "eval_transform", lambda config: used.append(build(config)) or used[-1])
    picture = folder / "pictures" / "one" / "0.JPEG"
    found = objects(run("predict", picture, "--weights", run_folder, "--json"))[0]
    assert len(used) == 1
    assert run("val", "--weights", run_folder).out.count(used[0].describe()) == 1 and len(used) > 1

    pixels = EvalTransform(SIZE, 0.8, "bilinear", "crop")(decode_rgb(picture)) / np.float32(255)
    pixels = (pixels - np.float32([0.485, 0.456, 0.406])) / np.float32([0.229, 0.224, 0.225])
    network = build_model("t2t_vit_7", num_classes=3, img_size=SIZE)
    load_weights(network, read_weights(run_folder), source="run")
    network.eval()
    logits = network(paddle.to_tensor(pixels.transpose(2, 0, 1)[None].astype("float32"))).numpy()[0].astype("float64")
    scores = np.exp(logits) / np.exp(logits).sum()
    assert found["class_id"] == scores.argmax()
    for row in found["top"]:
        assert row["score"] == pytest.approx(scores[row["class_id"]], abs=1e-5)


def test_the_same_every_time(run_folder, folder):
    # In training mode stochastic depth would draw anew.
    words = ("predict", folder / "pictures", "--weights", run_folder, "model.drop_path=0.9", "model.drop_rate=0.5")
    assert run(*words).out == run(*words).out


def test_settings_change_the_transform(run_folder, folder):
    words = ("predict", folder / "pictures", "--weights", run_folder, "--json")
    assert run(*words, "data.resize=squash").out != run(*words).out


def test_as_a_process_in_another_folder_without_torch(folder, tmp_path, root):
    make_image(tmp_path / "a.jpg")
    words = ["a.jpg", "--weights", str(folder / "three"), *SMALL]
    code = (f"import sys; sys.path.insert(0, {str(root / 'tools')!r}); import predict; "
            f"code = predict.main({words!r}); print(code, 'torch' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0 False" and done.stderr == "", done
    assert "class_id is: " in done.stdout


# ---------------------------------------------------------------- mistakes


def test_without_weights_it_says_where_they_come_from(root, tmp_path):
    picture = root / "lit_data" / "cat.jpg"
    missing = f"val.weights={tmp_path / 'w.pdparams'}"
    mistake(run("predict", picture, missing), tmp_path / "w.pdparams", "README.md, 'Weights'")
    mistake(run("predict", picture, "val.weights="), "no weights given", "README.md")
    mistake(run("predict", picture, "--weights", tmp_path), tmp_path, "no best.pdparams or last.pdparams")


@pytest.mark.parametrize(("words", "part"), [
    (("absent.jpg",), "absent.jpg"),
    (("absent/",), "absent"),
    ((), "IMG"),
    (("train.lr=1",), "no image given"),
    (("a.jpg", "--topk", "0"), "--topk: 0"),
    (("a.jpg", "--topk", "many"), "many"),
    (("a.jpg", "--nonsense"), "--nonsense"),
    (("a.jpg", "model.nam=x"), "model.name"),
])  # fmt: skip
def test_wrong_words(folder, tmp_path, monkeypatch, words, part):
    make_image(tmp_path / "a.jpg")
    monkeypatch.chdir(tmp_path)
    mistake(run("predict", "--weights", folder / "three", *words), part)


def test_empty_folder(folder, tmp_path):
    (tmp_path / "notes.txt").write_text("c", encoding="utf-8")
    mistake(run("predict", tmp_path, "--weights", folder / "three"), tmp_path, "no images", ".jpeg")


def test_help(folder):
    outcome = run("predict", "--help")
    assert all(word in outcome.out for word in ("IMG", "--weights", "--topk", "--json", "--config"))
    assert last_line(outcome)
