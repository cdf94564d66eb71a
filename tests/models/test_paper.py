"""The paper's tables as data: complete, linked to the registry, and every disagreement named."""

import re

import pytest
from models import ROWS
from models.paper import MEASURED, TABLES, figure_1

ALL = [(number, row) for number, table in TABLES.items() for row in table.rows]
# Not in the registry, so only as printed.
NOT_BUILT = {
    "DeiT-small", "DeiT-small-Distilled", "T2T-ViT-7-Distilled", "T2T-ViT-12-Distilled", "AlexNet", "VGG11",
    "Inception v3", "Wide-ResNet18x1.5*", "DenseNet201*", "SENet50*", "ResNet50-Ghost*",
}  # fmt: skip


def one(number, title):
    """The first row of a table with this title."""
    return next(row for row in TABLES[number].rows if row.title == title)


def test_every_row_is_there():
    assert {number: len(table.rows) for number, table in TABLES.items()} == {1: 9, 2: 8, 3: 12, 4: 8, 5: 3, 6: 23, 7: 6}
    assert all(number == table.number and table.title for number, table in TABLES.items())


def test_every_network_of_ours_is_linked_and_no_other():
    assert {row.title for _, row in ALL if row.name is None} == NOT_BUILT
    assert {row.name for _, row in ALL} - {None} == set(ROWS) - {"t2t_vit_10"}  # which only the official README has
    for _, row in ALL:
        assert (row.built is None) == (row.name is None)
        if row.name is None:
            assert "ot built here" in row.remark and (row.own_params, row.own_macs, row.measured) == (None, None, None)


# Titles that are not those of the registry: starred, marked as baseline, or another name of the network.
OTHER_TITLES = {
    "T2T-ViT-Wide": "t2t_vit_14_wide", "T2T-ViT-d768-4": "t2t_vit_14_wide", "T2T-ViT-SE": "t2t_vit_14_se",
    "T2T-ViT-ResNeXt": "t2t_vit_14_resnext", "T2T-ViT-Ghost": "t2t_vit_16_ghost",
}  # fmt: skip


@pytest.mark.parametrize(("number", "row"), ALL, ids=[f"{number}-{row.title}" for number, row in ALL])
def test_a_link_leads_to_the_network_of_the_title(number, row):
    if row.name:
        title = re.sub(r"\*| \(Baseline\)| \(Searched\)", "", row.title)
        assert row.name == OTHER_TITLES.get(title, row.name)
        assert title in OTHER_TITLES or ROWS[row.name].title == title


@pytest.mark.parametrize(("number", "title", "printed"), [
    (1, "ViT-S/16", {"params": 48.6, "macs": 10.1, "depth": 8, "hidden": 786, "mlp": 2358, "layer": ""}),
    (1, "ViT-L/16", {"params": 304.3, "macs": 63.6, "depth": 24, "hidden": 1024, "mlp": 4096}),
    (1, "T2T-ViT-7", {"params": 4.2, "macs": 1.1, "depth": 8, "hidden": 256, "mlp": 512, "layer": "Performer"}),
    (1, "T2T-ViT-12", {"params": 6.8, "depth": 12, "hidden": 256, "mlp": 512}),
    (1, "T2T-ViT_t-14", {"depth": 14, "hidden": 384, "mlp": 1152, "layer": "Transformer"}),
    (2, "DeiT-small", {"params": 22.1, "macs": 4.6, "top1": 79.9}),
    (2, "T2T-ViT-14↑384", {"params": 21.5, "macs": 17.1, "top1": 83.3}),
    (2, "ViT-B/16", {"params": 86.4, "macs": 17.6, "top1": 79.8}),
    (3, "ResNet50", {"params": 25.5, "macs": 4.3, "top1": 76.2}),
    (3, "ResNet152*", {"params": 60.2, "macs": 11.6, "top1": 80.8}),
    (3, "T2T-ViT_t-19", {"params": 39.2, "macs": 9.8, "top1": 82.2}),
    (4, "T2T-ViT-7-Distilled", {"params": 4.3, "macs": 1.1, "top1": 73.1}),
    (4, "T2T-ViT-12-Distilled", {"params": 6.9, "macs": 1.9, "top1": 77.4}),
    (4, "MobileNetV2 1.4x*", {"params": 6.9, "macs": 0.6, "top1": 75.6}),
    (5, "ViT-S/16", {"top1": 78.1, "macs": None, "cifar10": 97.1, "cifar100": 87.1}),
    (5, "T2T-ViT-19", {"params": 39.1, "cifar10": 98.3, "cifar100": 89.0}),
    (6, "ResNet50-Ghost*", {"params": 19.9, "macs": 3.2, "top1": 76.2, "delta": -2.9, "depth": 50}),
    (6, "ViT-SW", {"params": 47.9, "macs": 9.9, "top1": 69.9, "delta": -8.2, "depth": 4, "hidden": 1024}),
    (6, "ViT-Dense", {"params": 46.7, "macs": 9.7, "top1": 76.8, "depth": 19, "hidden": "128-736"}),
    (6, "T2T-ViT-Wide", {"params": 25.1, "macs": 5.0, "top1": 77.9, "delta": -3.4, "depth": 14, "hidden": 768}),
    (7, "T2T-ViT-14 without T2T", {"params": 21.1, "macs": 4.2, "top1": 79.5, "delta": None}),
    (7, "T2T-ViT-d768-4", {"params": 25.0, "macs": 5.4, "top1": 78.8, "delta": -2.7}),
])  # fmt: skip
def test_figures_as_printed(number, title, printed):
    row = one(number, title)
    assert {field: getattr(row, field) for field in printed} == printed


@pytest.mark.parametrize(("number", "title", "parts"), [
    (1, "ViT-S/16", ("786", "768", "2358", "2304")),
    (1, "ViT-B/16", ("786", "768", "86.4 M")),
    (1, "T2T-ViT-7", ("Depth 8", "7 blocks", "4.84 M", "1.27 G", "4.3 M")),
    (1, "T2T-ViT-12", ("Table 4", "6.9 M")),
    (2, "T2T-ViT-14↑384", ("21.7 M", "17.1 G", "not known")),
    (2, "ViT-B/16", ("Table 1", "86.8 M")),
    (2, "T2T-ViT-14", ("Open Model Zoo", "81.44")),
    (3, "T2T-ViT_t-14", ("Section 4.1", "81.5 %", "81.7 %", "51.5 %", "60 %")),
    (3, "T2T-ViT_t-19", ("README", "82.4 %", "82.44 %")),
    (3, "T2T-ViT-24", ("1.4 to 2.7", "1.5", "2.6")),
    (4, "T2T-ViT-7", ("Table 1", "8 blocks", "4.2 M", "7")),
    (4, "T2T-ViT-12", ("Table 1", "6.8 M")),
    (4, "T2T-ViT-7-Distilled", ("DeiT", "no settings")),
    (5, "T2T-ViT-14", ("README", "98.3 %")),
    (5, "T2T-ViT-19", ("README", "98.4 %", "39.2 M")),
    (6, "DenseNet201*", ("Section 4.2", "77.5 %", "76.2 %", "79.1 %")),
    (6, "ViT-DN", ("not published", "24.50 M")),
    (6, "ViT-SW", ("not published", "44.0 M", "52.4 M")),
    (6, "ViT-Dense", ("Only 19 blocks", "growth 80")),
    (6, "T2T-ViT-Wide", ("Depth 14", "4 blocks", "3.6 points", "Table 7", "78.8 %")),
    (6, "T2T-ViT-Dense", ("0.9 points", "1.1")),
    (6, "T2T-ViT-Ghost", ("Depth 14", "16 blocks", "14.33 M")),
    (7, "T2T-ViT-14 without T2T", ("21.1 M", "4.2 G", "not known")),
    (7, "T2T-ViT_c-14", ("trainable",)),
    (7, "T2T-ViT-d768-4", ("Table 6", "77.9 %", "25.1 M", "5.0 G")),
])  # fmt: skip
def test_disagreements_are_named(number, title, parts):
    remark = one(number, title).remark
    assert [part for part in parts if part not in remark] == []


def test_what_two_tables_print_differently_stands_beside_both():
    found = set()
    for field in ("params", "macs", "top1"):
        for number, row in ALL:
            if row.name is None or getattr(row, field) is None:
                continue
            alike = [other for _, other in ALL if other.name == row.name and ("*" in other.title) == ("*" in row.title)]
            for value in {getattr(other, field) for other in alike} - {None, getattr(row, field)}:
                assert str(value) in row.remark, (number, row.title, field, value)
                found.add((row.name, field))
    assert found == {
        ("vit_b_16", "params"), ("t2t_vit_7", "params"), ("t2t_vit_12", "params"), ("t2t_vit_19", "params"),
        ("resnet50", "params"), ("t2t_vit_14_wide", "params"), ("t2t_vit_14_wide", "macs"), ("t2t_vit_14_wide", "top1"),
    }  # fmt: skip


def test_what_the_registry_has_otherwise_stands_beside_the_row():
    found = set()
    for number, row in ALL:
        if row.built and "accuracy is the one its authors" not in row.remark:
            pairs = {
                "params": row.built.published_params, "macs": row.built.published_macs, "top1": row.built.top1,
            }  # fmt: skip
            for field, value in pairs.items():
                if getattr(row, field) not in (None, value):
                    assert str(value) in row.remark, (number, row.title, field)
                    found.add((number, row.name, field))
    assert {(2, "t2t_vit_14_384", "params"), (3, "t2t_vit_t_19", "top1"), (6, "t2t_vit_14_wide", "top1")} <= found


def test_changes_that_are_no_difference_are_named():
    wrong = {}
    for table in (TABLES[6], TABLES[7]):
        base = {}
        for row in table.rows:
            # The first row of a group is what it compares with; of the CNNs the second, trained with the same recipe.
            if row.delta is None:
                base[row.group] = row.top1
            elif round(row.top1 - base[row.group], 1) != row.delta:
                wrong[row.title] = round(row.top1 - base[row.group], 1)
                assert f"{abs(wrong[row.title])} points" in row.remark and str(abs(row.delta)) in row.remark
    assert wrong == {"T2T-ViT-Wide": -3.6, "T2T-ViT-Dense": -0.9}


def test_measured_accuracies():
    assert MEASURED["t2t_vit_7"][:2] == (71.676, 90.886) and MEASURED["t2t_vit_t_24"][:2] == (82.554, 96.064)
    assert MEASURED["t2t_vit_14_384"].by == "PaddleViT, crop 1.0"
    assert {name for name in ROWS if re.fullmatch(r"t2t_vit_(t_)?\d+(_384)?", name)} == set(MEASURED)
    for name, measured in MEASURED.items():
        assert abs(measured.top1 - ROWS[name].top1) < 0.06 and measured.top5 > 90 and measured.by
    assert one(1, "T2T-ViT-14").measured is None  # Table 1 prints no accuracy
    assert one(3, "T2T-ViT_t-19").measured.top1 == 82.442


def test_no_log_of_ours_holds_an_accuracy_that_the_tables_lack(root):
    logs = list((root / "log").glob("*.log"))
    text = "\n".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)
    assert "val acc is" in text, "the logs are there"
    assert not re.search(r"(?i)(imagenet|cifar\S*) (final )?val acc is", text), "put it into the tables"


def test_own_counts_are_the_registry_s():
    row = one(3, "T2T-ViT-14")
    assert (row.own_params, row.own_macs) == (21.54555, 4.8)
    assert one(5, "T2T-ViT-14").own_macs is None  # Table 5 prints no MACs


def test_points_of_figure_1():
    families = figure_1()
    assert {name: len(points) for name, points in families.items()} == {
        "T2T-ViT": 5, "T2T-ViT_t": 3, "ViT": 3, "DeiT": 1, "ResNet": 3, "MobileNet": 4,
    }  # fmt: skip
    assert families["DeiT"] == [("DeiT-small", 4.6, 22.1, 79.9, False)]
    assert families["T2T-ViT"][0] == ("T2T-ViT-7", 1.156, 4.310222, 71.7, True)
    assert families["ResNet"][0] == ("ResNet50", 4.089, 25.557032, 79.1, True)
    assert families["MobileNet"][3].label == "MobileNetV3"
    assert all(point.counted for name, points in families.items() for point in points if name != "DeiT")
