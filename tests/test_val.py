"""The evaluation command: which weights, which images, the target, and the lines that others read."""

import re
import shutil

import pytest
from commands import (
    cut_short,
    last_line,
    make_folders,
    make_image,
    make_list,
    make_weights,
    manifest,
    metrics,
    mistake,
    process,
    run,
    settings,
)
from engine.config import load_config
from engine.evaluate import Evaluation
from engine.schema import ValConfig
from PIL import Image
from val import judge

RESULT = re.compile(r"^images: (\d+), top-1: ([01]\.\d{4}), top-5: ([01]\.\d{4}), loss: (\d+\.\d{4})$", re.MULTILINE)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """train/ and val/ with three class folders each, 12 and 9 images; weights.pdparams."""
    folder = tmp_path_factory.mktemp("photos")
    make_folders(folder / "train")
    make_folders(folder / "val", count=3, seed=50)
    make_weights(folder / "weights")
    return folder


@pytest.fixture(scope="module")
def run_folder(photos, tmp_path_factory):
    """A run whose best epoch is not its last one."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    outcome = run("train", *settings(photos, folder, train__epochs=4, train__lr=3e-3, train__seed=2))
    assert outcome.code == 0, outcome.err
    rows = metrics(folder, "val")
    best = max(rows, key=lambda row: row["top1"])
    assert best["epoch"] < 4 and f"{best['loss']:.4f}" != f"{rows[-1]['loss']:.4f}", rows
    return folder


def val(photos, *words, **more):
    """The command with the settings of `photos`, `words` and `more`."""
    return run("val", *words, *settings(photos, "unused", **more))


def measured(outcome):
    """(images, top-1, top-5, loss) as printed."""
    assert outcome.code == 0, outcome
    return RESULT.search(outcome.out).groups()


# ---------------------------------------------------------------- averaged or raw


def test_which_weights_were_evaluated(photos, tmp_path):
    """The average of a run, its raw weights, a copy of either, and a run that has given up its average."""
    more = {"train__epochs": 2, "train__lr": 3e-3, "train__ema_decay": 0.5}
    assert run("train", *settings(photos, tmp_path / "run", **more)).code == 0
    rows = metrics(tmp_path / "run", "val")
    last = {row["weights"]: f"{row['loss']:.4f}" for row in rows if row["epoch"] == 2}
    assert last["raw"] != last["ema"]
    for name, kind in (("last", "raw"), ("last_ema", "ema")):
        outcome = run("val", "--weights", tmp_path / "run" / f"{name}.pdparams")
        assert f"\nweights: {kind}\n" in outcome.out and measured(outcome)[3] == last[kind]
    best = max((row for row in rows if row["weights"] == "ema"), key=lambda row: row["top1"])
    outcome = run("train", *settings(photos, tmp_path / "run", **{**more, "train__epochs": 3}), "train.ema_decay=null")
    assert "best.pdparams holds averaged weights and stays until raw ones are better" in outcome.out
    best_now = max((row["top1"] for row in metrics(tmp_path / "run", "val") if row["epoch"] == 3), default=0)
    outcome = run("val", "--weights", tmp_path / "run")
    if best_now <= best["top1"]:
        assert "\nweights: ema\n" in outcome.out and measured(outcome)[3] == f"{best['loss']:.4f}"
    else:
        assert "\nweights: raw\n" in outcome.out
    shutil.copy(tmp_path / "run" / "best.pdparams", tmp_path / "copy.pdparams")
    outcome = val(photos, "--weights", tmp_path / "copy.pdparams")
    assert "\nweights: raw (nothing beside the file tells otherwise)\n" in outcome.out


# ---------------------------------------------------------------- lines


def test_lines_follow_the_contract(photos):
    outcome = val(photos, "--weights", photos / "weights", val__log_every=2)
    steps = re.findall(r"^Step \[(\d)/3\], acc: [01]\.\d{4}, read_time: \d+\.\d{4}", outcome.out, re.MULTILINE)
    assert steps == ["2", "3"]
    assert re.fullmatch(r"Made final val acc is:[01]\.\d{4}", last_line(outcome))
    assert measured(outcome)[1] == last_line(outcome).partition(":")[2]
    assert "111 tensors loaded" in outcome.out and "val: 9 images" in outcome.out
    assert outcome.err == ""


def test_as_a_process_in_another_folder(photos, tmp_path):
    shutil.copy(photos / "weights.pdparams", tmp_path / "w.pdparams")
    outcome = process("val", "--weights", "w", *settings(photos, "unused"), cwd=tmp_path)
    assert re.fullmatch(r"Made final val acc is:[01]\.\d{4}", last_line(outcome))
    assert outcome.err == "", "a normal run is silent on stderr"
    assert not (tmp_path / "unused").exists()


def test_three_classes_make_a_top5_of_one(photos):
    assert measured(val(photos, "--weights", photos / "weights"))[2] == "1.0000"


def test_numbers_do_not_depend_on_batch_and_workers(photos):
    results = {
        measured(val(photos, "--weights", photos / "weights", val__batch_size=batch, data__workers=workers))
        for batch, workers in ((1, 0), (4, 0), (9, 0), (100, 0), (4, 2))
    }
    assert len({result[:3] for result in results}) == 1
    losses = [float(result[3]) for result in results]
    assert max(losses) - min(losses) < 2e-4


# ---------------------------------------------------------------- weights


def test_logged_best_is_reproduced(run_folder):
    rows = metrics(run_folder, "val")
    best, last = max(rows, key=lambda row: row["top1"]), rows[-1]
    for weights, row in ((run_folder, best), (run_folder / "best.pdparams", best), (run_folder / "best", best),
                         (f"{run_folder}/", best), (run_folder / "last", last)):
        outcome = run("val", "--weights", weights)
        assert measured(outcome) == ("9", f"{row['top1']:.4f}", f"{row['top5']:.4f}", f"{row['loss']:.4f}"), weights


def test_val_weights_of_the_configuration(photos, run_folder):
    given = val(photos, "--weights", photos / "weights.pdparams")
    assert measured(val(photos, val__weights=photos / "weights")) == measured(given)
    # They leave the configuration as it is; --weights brings that of the run along.
    assert "Resize(17, bicubic)" in val(photos, val__weights=run_folder).out
    outcome = run("val", "--weights", run_folder, "data.crop_pct=0.5")
    assert "Resize(32, bicubic)" in outcome.out and "Made final" in outcome.out


def test_what_is_evaluated_is_said(photos, run_folder):
    assert f"weights: {run_folder / 'best.pdparams'} (111 tensors loaded)" in run("val", "--weights", run_folder).out
    outcome = val(photos, "--weights", photos / "weights", data__resize="squash", data__interpolation="bilinear")
    assert "Resize(16x16, bilinear)" in outcome.out and "CenterCrop" not in outcome.out


# ---------------------------------------------------------------- images


def test_class_folders_are_numbered_as_in_training(photos, run_folder, tmp_path):
    # Alone, these folders would be numbered 0 and 1; in training they were 0 and 2.
    for name in ("ant", "cow"):
        shutil.copytree(photos / "val" / name, tmp_path / "val" / name)
    by_folder = measured(run("val", "--weights", run_folder, f"data.val_dir={tmp_path / 'val'}"))
    lines = [f"{name}/{i}.JPEG {label}\n" for name, label in (("ant", 0), ("cow", 2)) for i in range(3)]
    (tmp_path / "list.txt").write_text("".join(lines), encoding="utf-8")
    words = (f"data.val_dir={tmp_path / 'val'}", f"data.val_list={tmp_path / 'list.txt'}")
    assert measured(run("val", "--weights", run_folder, *words)) == by_folder
    (tmp_path / "val" / "cow").rename(tmp_path / "val" / "dog")
    mistake(run("val", "--weights", run_folder, words[0]), "'dog'", tmp_path / "val")


def test_lists_and_folders_agree(photos, tmp_path):
    by_list = val(photos, "--weights", photos / "weights", data__val_list=make_list(photos / "val", tmp_path / "l.txt"))
    assert measured(by_list) == measured(val(photos, "--weights", photos / "weights"))


def test_broken_images_stop_or_are_told(photos, tmp_path):
    shutil.copytree(photos / "val", tmp_path / "val")
    broken = cut_short(tmp_path / "val" / "bee" / "0.JPEG")
    weights = ("--weights", photos / "weights")
    mistake(val(tmp_path, *weights), broken, "data.on_error=skip")
    outcome = val(tmp_path, *weights, data__on_error="skip", val__target_acc=0.99)
    assert measured(outcome)[0] == "8"
    assert f"1 of 9 images left out, since they could not be decoded:\n  {broken}\n" in outcome.out
    assert "target: 0.9900 not judged: it holds for 9 images, 8 were evaluated" in outcome.out
    broken.unlink()
    assert measured(val(tmp_path, *weights))[:3] == measured(outcome)[:3]


def test_nothing_but_broken_images_is_no_accuracy(photos, tmp_path):
    for name in ("ant", "bee", "cow"):
        cut_short(tmp_path / "val" / name / "0.JPEG")
    outcome = val(tmp_path, "--weights", photos / "weights", data__on_error="skip")
    mistake(outcome, tmp_path / "val" / "ant" / "0.JPEG", "nor any other of 3")
    assert "final val acc" not in outcome.out


def test_mixed_kinds_of_pictures_in_one_batch(photos, tmp_path):
    source = Image.open(make_image(tmp_path / "source.png"))
    for name, mode, suffix in (("grey", "L", "JPEG"), ("cmyk", "CMYK", "JPEG"), ("palette", "P", "png"),
                               ("alpha", "RGBA", "png"), ("grey alpha", "LA", "png"), ("bit", "1", "png"),
                               ("rgb", "RGB", "gif")):
        source.convert(mode).save(tmp_path / f"{name}.{suffix}")
    files = sorted(item.name for item in tmp_path.iterdir())
    (tmp_path / "list.txt").write_text("".join(f"{name} 1\n" for name in files), encoding="utf-8")
    words = {"data__val_dir": tmp_path, "data__val_list": tmp_path / "list.txt", "val__batch_size": 8}
    assert measured(val(photos, "--weights", photos / "weights", **words))[0] == "8"


def test_reference_files_as_their_manifest_says(photos, shared_dir, tmp_path):
    accepted, refused = manifest(shared_dir)
    assert len(accepted) == 12 and len(refused) == 4
    lines = [f"{file.name} {number % 3}\n" for number, file in enumerate(accepted)]
    (tmp_path / "all.txt").write_text("".join(lines), encoding="utf-8")
    words = {"data__val_dir": accepted[0].parent, "data__val_list": tmp_path / "all.txt"}
    outcome = val(photos, "--weights", photos / "weights", **words)
    assert measured(outcome)[0] == "12" and outcome.err == ""
    for file in refused:
        (tmp_path / "all.txt").write_text("".join([*lines, f"{file.name} 1\n"]), encoding="utf-8")
        mistake(val(photos, "--weights", photos / "weights", **words), file)


# ---------------------------------------------------------------- the target


def evaluation(top1, count=10, skipped=()):
    return Evaluation(top1, 1.0, 0.5, count, list(skipped))


@pytest.mark.parametrize(("settings_", "result", "samples", "code", "words"), [
    ({}, evaluation(0.1), 10, 0, "none set"),
    ({"target_acc": 0.5}, evaluation(0.5), 10, 0, "0.5000 reached with 0.5000"),
    ({"target_acc": 0.5}, evaluation(0.4), 10, 1, "0.5000 missed with 0.4000"),
    ({"target_acc": 0.7156}, evaluation(0.71556), 10, 0, "0.7156 reached with 0.7156"),
    ({"target_acc": 0.7156}, evaluation(0.71554), 10, 1, "0.7156 missed with 0.7155"),
    ({"target_acc": 0.5}, evaluation(0.4, 9, [3]), 10, 0, "not judged: it holds for 10 images, 9 were evaluated"),
    ({"target_acc": 0.5, "target_images": 10}, evaluation(0.4), 10, 1, "missed"),
    ({"target_acc": 0.5, "target_images": 50000}, evaluation(0.4), 10, 0, "it holds for 50000 images, 10 were"),
    ({"target_acc": 0.5, "target_images": 9}, evaluation(0.4, 9, [3]), 10, 0, "not judged"),
    ({"target_acc": 0.5, "target_images": 9}, evaluation(0.6), 10, 0, "not judged"),
])  # fmt: skip
def test_target_is_judged_on_the_whole_set_only(settings_, result, samples, code, words):
    assert judge(ValConfig(**settings_), result, samples)[0] == code
    assert words in judge(ValConfig(**settings_), result, samples)[1]


def test_missed_target_ends_with_one_and_is_no_mistake(photos, tmp_path):
    shutil.copytree(photos / "val" / "ant", tmp_path / "val" / "ant")
    # One image under all labels: exactly one of three answers is right.
    lines = "".join(f"ant/0.JPEG {label}\n" for label in range(3))
    (tmp_path / "list.txt").write_text(lines, encoding="utf-8")
    words = {"data__val_list": tmp_path / "list.txt", "val__target_images": 3}
    outcome = val(tmp_path, "--weights", photos / "weights", **words, val__target_acc=0.5)
    assert outcome.code == 1 and outcome.err == ""
    assert "target: 0.5000 missed with 0.3333" in outcome.out and "error: " not in outcome.out
    assert outcome.out.splitlines()[-1] == "Made final val acc is:0.3333"
    outcome = val(tmp_path, "--weights", photos / "weights", **words, val__target_acc=0.3333)
    assert outcome.code == 0 and "target: 0.3333 reached with 0.3333" in outcome.out


def test_number_of_images_is_not_inherited_by_other_targets(root, tmp_path):
    base = root / "config" / "t2t_vit_7.yaml"
    assert load_config(base, ["val.target_acc=0.5"]).val.target_images is None
    assert load_config(base, ["val.target_acc=0.5", "val.target_images=7"]).val.target_images == 7
    assert load_config(root / "config" / "t2t_vit_14.yaml").val.target_images == 50000
    (tmp_path / "own.yaml").write_text(f"base: {base}\ndata: {{val_dir: x}}\nval: {{target_acc: 0.5}}\n")
    assert load_config(tmp_path / "own.yaml").val.target_images is None
    (tmp_path / "own.yaml").write_text(f"base: {base}\ndata: {{val_dir: x}}\n")
    assert load_config(tmp_path / "own.yaml").val.target_images == 50000


def test_default_configuration_holds_the_published_target(root):
    config = load_config(root / "config" / "t2t_vit_7.yaml")
    assert (config.val.target_acc, config.val.target_images) == (0.7156, 50000)
    assert config.data.name == "ImageNet"
