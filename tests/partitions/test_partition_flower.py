"""The Partitioners, as a Flower user has them: with flwr-datasets, on a data set in memory."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Image, Value
from flwr_datasets import FederatedDataset
from flwr_datasets.visualization import plot_label_distributions
from PIL import Image as Picture
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2.functional import rotate

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.partitions.allocation import latent_clusters
from spcacw_flwr.partitions.flower import (
    LatentClusterPartitioner,
    RelabelPartitioner,
    RolePartitioner,
    RotatePartitioner,
)
from spcacw_flwr.partitions.relabel import permutations
from spcacw_flwr.silos.streams import NOISE, stream
from tests.test_walls import python


def labelled(n, classes, column="fine_label"):
    """A data set with ids, and labels of which all classes have about the same number."""
    labels = np.random.default_rng(0).permutation(np.arange(n) % classes)
    features = Features({"id": Value("int64"), column: ClassLabel(num_classes=classes)})
    return Dataset.from_dict({"id": range(n), column: labels}, features=features)


def assigned(partitioner, dataset):
    partitioner.dataset = dataset
    return partitioner


def test_latent_clusters_deal_out_everything_by_their_matrix():
    data = labelled(2000, 20)
    partitioner = assigned(LatentClusterPartitioner((2, 3), epsilon=0.01, seed=4), data)
    shares = [partitioner.load_partition(i) for i in range(5)]
    assert sorted(i for share in shares for i in share["id"][:]) == list(range(2000))
    counts = np.stack([np.bincount(share["fine_label"][:], minlength=20) for share in shares])
    x = latent_clusters((2, 3), 20, 0.01, stream(4, NOISE))
    np.testing.assert_array_equal(partitioner.allocation, x)
    assert np.abs(counts - 100 * x).max() <= 1
    # The test split of the same seed is dealt out in the same shares.
    test = assigned(LatentClusterPartitioner((2, 3), epsilon=0.01, seed=4), labelled(400, 20))
    np.testing.assert_array_equal(test.allocation, x)


def test_our_setting_and_the_partitioner_agree(make, cifar_dir):
    from spcacw_flwr.partitions.images import load_cifar100

    labels = load_cifar100(cifar_dir).y_train
    features = Features({"id": Value("int64"), "fine_label": ClassLabel(num_classes=100)})
    data = Dataset.from_dict({"id": range(50_000), "fine_label": labels}, features=features)
    partitioner = assigned(LatentClusterPartitioner(seed=2), data)
    setting = make("cifar100-clusters", seed=2)
    assert partitioner.load_partition(7)["id"][:] == setting._rows("train", 7).tolist()


def test_labels_need_not_be_class_labels():
    data = Dataset.from_dict({"y": [0, 1, 2, 3] * 5})
    partitioner = assigned(LatentClusterPartitioner((1, 1), 0.0, partition_by="y"), data)
    assert set(partitioner.load_partition(1)["y"][:]) == {2, 3}


@pytest.mark.parametrize(
    ("partitioner", "why"),
    [
        (LatentClusterPartitioner((1,) * 5, 0.0), "5 clusters cannot share 4 classes"),
        (LatentClusterPartitioner((2, 2), -1.0), "epsilon = -1"),
        (LatentClusterPartitioner((30, 1), 0.0), r"Silo \d+ of LatentClusterPartitioner has no"),
        (RotatePartitioner(21, image="id", samples_per_partition=1), "21 silos × 1"),
        (RotatePartitioner(21, image="id"), "21 silos × 1"),
        (RelabelPartitioner(samples_per_partition=3), "7 silos × 3 samples"),
        (
            RelabelPartitioner(),
            "no column 'label', only id, fine_label: make the "
            "RelabelPartitioner with partition_by= one of these",
        ),
        (LatentClusterPartitioner(partition_by="x"), "no column 'x'"),
        (RolePartitioner(), "no column 'character_id'"),
        (RotatePartitioner(2), "no column 'image'.* with image= one of these"),
        (RelabelPartitioner((1,) * 5, partition_by="fine_label"), "5 clusters"),
    ],
)
def test_bad_input_is_one_sentence(partitioner, why):
    with pytest.raises(SpcacwError, match=why):
        assigned(partitioner, labelled(20, 4)).load_partition(0)


@pytest.mark.parametrize("column", [["a", "b"], [0, -1], [0.5, 1.0], [None, 1]])
@pytest.mark.parametrize("made", [LatentClusterPartitioner, RelabelPartitioner])
def test_labels_that_are_no_numbers_from_0_are_refused(made, column):
    partitioner = made((1, 1), partition_by="kind")
    with pytest.raises(SpcacwError, match=r"'kind' .* whole numbers from 0.*class_encode_column"):
        assigned(partitioner, Dataset.from_dict({"kind": column * 5})).load_partition(1)


@pytest.mark.parametrize("silo", [-1, 7])
def test_a_silo_that_does_not_exist_is_refused(silo):
    for some in RelabelPartitioner(partition_by="fine_label"), RotatePartitioner(7, image="id"):
        with pytest.raises(SpcacwError, match=f"no silo {silo}: choose one from 0 to 6"):
            assigned(some, labelled(20, 4)).load_partition(silo)


def test_roles():
    names = ["a"] * 5 + ["b"] * 2 + ["c"] * 7 + ["d"] * 5 + ["e"] * 6
    order = np.random.default_rng(0).permutation(len(names))
    table = {"id": order, "character_id": [names[i] for i in order]}
    partitioner = assigned(RolePartitioner(2, 2, least_samples=5, seed=1), Dataset.from_dict(table))
    held = [partitioner.load_partition(i) for i in range(2)]
    roles = [set(share["character_id"][:]) for share in held]
    assert roles[0] | roles[1] == {"a", "c", "d", "e"}
    assert not roles[0] & roles[1]
    for share, mine in zip(held, roles, strict=True):
        wanted = [i for i, name in zip(order, table["character_id"], strict=True) if name in mine]
        assert share["id"][:] == wanted, "rows stay in their order"
    few = RolePartitioner(2, 2, least_samples=6)
    with pytest.raises(SpcacwError, match=r"only 2 of the 5 roles have at least 6 samples"):
        assigned(few, Dataset.from_dict(table)).load_partition(0)


@pytest.mark.parametrize("how", ["shift", "random"])
def test_relabel(how):
    data = labelled(70, 10, "label")
    partitioner = assigned(RelabelPartitioner(how=how, samples_per_partition=9, seed=3), data)
    shares = [partitioner.load_partition(i) for i in range(7)]
    ids = [i for share in shares for i in share["id"][:]]
    assert len(ids) == len(set(ids)) == 63
    for share, cluster in zip(shares, [0, 0, 0, 1, 1, 2, 2], strict=True):
        names = permutations(3, 10, how, 3)[cluster]
        assert share["label"][:] == [names[data[i]["label"]] for i in share["id"][:]]
        assert share.features == data.features


def test_rotate():
    rng = np.random.default_rng(0)
    pictures = [Picture.fromarray(rng.integers(0, 256, (8, 8), np.uint8)) for _ in range(12)]
    features = Features({"image": Image(), "label": ClassLabel(num_classes=2)})
    table = {"image": pictures, "label": [0, 1] * 6}
    data = Dataset.from_dict(table, features=features)
    partitioner = assigned(RotatePartitioner(4, step=45.0), data)
    shares = [partitioner.load_partition(i) for i in range(4)]
    for i, share in enumerate(shares):
        assert len(share) == 3
        plain = data.select(partitioner.rows(i))
        for k in range(3):
            turned = np.asarray(rotate(plain[k]["image"], 45.0 * i, InterpolationMode.BILINEAR))
            np.testing.assert_array_equal(np.asarray(share[k]["image"]), turned)
            assert share[k]["label"] == plain[k]["label"]
    quarter = np.asarray(shares[2][0]["image"])
    np.testing.assert_array_equal(
        quarter, np.rot90(np.asarray(data[int(partitioner.rows(2)[0])]["image"]))
    )
    assert shares[1].with_format("numpy")["label"][:].tolist() == shares[1]["label"][:]
    assert shares[2].features == data.features


def test_pictures_stay_turned_under_a_transform_or_format_of_an_apps_own():
    picture = np.random.default_rng(0).integers(0, 256, (8, 8), np.uint8)
    features = Features({"image": Image()})
    data = Dataset.from_dict({"image": [Picture.fromarray(picture)] * 4}, features=features)
    share = assigned(RotatePartitioner(2, step=90.0), data).load_partition(1)

    def half(batch):
        return {"image": [np.asarray(one) / 2 for one in batch["image"]]}

    shown = share.train_test_split(test_size=0.5)["train"].with_transform(half)[0]["image"]
    np.testing.assert_array_equal(shown, np.rot90(picture) / 2)
    np.testing.assert_array_equal(share.with_format("numpy")[0]["image"], np.rot90(picture))


def test_in_a_federated_dataset_without_the_hub(tmp_path):
    """As in the README of flwr-datasets, on Parquet files that stand in for the hub's."""
    (tmp_path / "cifar").mkdir()
    labelled(200, 20).to_parquet(tmp_path / "cifar" / "train-0.parquet")
    labelled(100, 20).to_parquet(tmp_path / "cifar" / "test-0.parquet")
    split = {part: LatentClusterPartitioner((2, 2), epsilon=0.01) for part in ("train", "test")}
    cache, data = str(tmp_path / "cache"), str(tmp_path / "cifar")
    federated = FederatedDataset(dataset=data, partitioners=split, cache_dir=cache)
    sizes = [len(federated.load_partition(i, "train")) for i in range(4)]
    assert sum(sizes) == 200
    shares = [federated.load_partition(3, split)["fine_label"][:] for split in ("train", "test")]
    assert np.mean(np.array(shares[0]) >= 10) > 0.5
    assert np.mean(np.array(shares[1]) >= 10) > 0.5


def test_the_partitioners_need_no_other_part_of_the_project():
    python("""
import sys
sys.modules["flwr"] = sys.modules["ray"] = None
import spcacw_flwr.partitions.flower
needed = "partitions", "config", "silos.s", "silos"
mine = {m.removeprefix("spcacw_flwr.") for m in sys.modules if m.startswith("spcacw_flwr.")}
sys.exit(" ".join(m for m in mine if not m.startswith(needed[:3]) and m != needed[3]) or 0)
""")


@pytest.mark.parametrize("made", [
    LatentClusterPartitioner((2, 2), 0.01, partition_by="label"), RelabelPartitioner((1, 2)),
    RolePartitioner(3, 2, least_samples=5, partition_by="role"),
    RotatePartitioner(3),
])  # fmt: skip
def test_flwr_datasets_own_functions_plot_them(made):
    rows = {"label": np.arange(400) % 10, "role": [f"r{i % 40}" for i in range(400)],
            "image": [np.zeros((2, 2), np.uint8)] * 400}  # fmt: skip
    kinds = {"label": ClassLabel(num_classes=10), "role": Value("string"), "image": Image()}
    features = Features(kinds)
    figure, _, table = plot_label_distributions(
        assigned(made, Dataset.from_dict(rows, features=features)), label_name="label"
    )
    assert table.shape == (made.num_partitions, 10)
    assert figure.axes


def test_the_page_lists_every_argument_with_its_default():
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    for made in (LatentClusterPartitioner, RolePartitioner, RelabelPartitioner, RotatePartitioner):
        (line,) = [one for one in page.splitlines() if one.startswith(f"| `{made.__name__}`")]
        told = [f"`{name}={one.default!r}`".replace("'", '"')
                for name, one in inspect.signature(made).parameters.items()]  # fmt: skip
        assert re.findall(r"`\w+=[^`]*`", line) == told
