"""Shakespeare: LEAF's numbers on its own text, the paper's silos, their windows."""

import gzip
import lzma

import numpy as np
import pytest
import torch

from spcacw_flwr.config.declare import SpcacwError
from spcacw_flwr.partitions import plays
from spcacw_flwr.partitions.plays import (
    VOCABULARY,
    decode,
    draw_roles,
    encode,
    load_roles,
    split_by_time,
    windows,
)
from tests.conftest import one_sentence
from tests.partitions.conftest import rows


def test_leafs_numbers(plays_dir):
    roles = load_roles(plays_dir)
    samples = np.array([len(role.tokens) for role in roles]) - 80
    assert len(samples) == 1129
    assert samples.sum() == 4_226_158
    assert (samples > 0).all()
    assert samples.mean() == pytest.approx(3743.28, abs=0.005)
    assert samples.std() == pytest.approx(6212.26, abs=0.005)
    assert len({(role.play, role.character) for role in roles}) == 1129


def test_a_role_says_what_it_says(plays_dir):
    roles = load_roles(plays_dir)
    of = {(role.play, role.character): role.tokens for role in roles}
    hamlet = decode(of["THE TRAGEDY OF HAMLET, PRINCE OF DENMARK", "HAM"])
    assert "To be, or not to be- that is the question: Whether 'tis nobler" in hamlet
    assert "  " not in hamlet
    assert "\n" not in hamlet
    assert ("THE COMEDY OF ERRORS", "DROMIO OF SYRACUSE") in of


def test_encode_is_the_place_in_the_vocabulary():
    assert encode("\n !az}").tolist() == [0, 1, 2, 53, 78, 79]
    assert decode(encode(VOCABULARY)) == VOCABULARY
    assert len(encode("")) == 0
    for strange in "é", "*", "\x7f", "😀":
        with pytest.raises(SpcacwError, match="not among LEAF's 80"):
            encode(f"abc{strange}d")


@pytest.fixture
def edition(expect):
    """A short text that counts as LEAF's edition."""
    text = "first\nsecond line\n"
    expect(plays, "SHAKESPEARE", {"pg100.txt": text.encode()})
    return text


PACK = {"xz": lzma.compress, "gz": gzip.compress, "txt": bytes}


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_reads_packed_or_plain_text_whatever_its_line_ends(edition, tmp_path, suffix, start, end):
    path = tmp_path / f"pg100.txt{'' if suffix == 'txt' else '.' + suffix}"
    path.write_bytes(PACK[suffix](start + edition.encode().replace(b"\n", end)))
    assert plays.read(plays.SHAKESPEARE, str(tmp_path)) == {"pg100.txt": edition.encode()}


@pytest.mark.parametrize("suffix", ["xz", "gz"])
@pytest.mark.parametrize("harm", ["truncate", "garbage", "another"])
def test_a_damaged_file_or_another_edition_is_named(edition, tmp_path, suffix, harm):
    path = tmp_path / f"pg100.txt.{suffix}"
    bad = {"garbage": b"no archive", "another": PACK[suffix](b"another edition")}
    path.write_bytes(bad.get(harm, PACK[suffix](edition.encode())[:-3]))
    with one_sentence("damaged or another edition", str(path)):
        load_roles(str(tmp_path))


def test_no_text_says_where_to_put_which(tmp_path):
    with one_sentence("pg100.txt.xz", "data-dir", str(tmp_path)):
        load_roles(str(tmp_path))


def test_windows_by_hand():
    text = np.arange(10, dtype=np.uint8)
    assert windows(text, 3, 3).tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    assert windows(text, 3, 4).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert windows(text, 9, 1).tolist() == [list(range(10))]
    assert windows(text, 10, 1).shape == (0, 11)
    assert windows(text[:0], 3, 1).shape == (0, 4)


def test_the_split_is_by_time():
    first, last = split_by_time(np.arange(20, dtype=np.uint8), 0.1)
    assert (first.tolist(), last.tolist()) == (list(range(18)), [18, 19])


def test_roles_are_drawn_by_hand():
    sizes = np.array([5, 9, 5, 1, 7, 4])
    drawn = draw_roles(sizes, 2, 2, 5, np.random.default_rng(0), "characters")
    assert [len(roles) for roles in drawn] == [2, 2]
    assert set(np.concatenate(drawn)) == {0, 1, 2, 4}
    with pytest.raises(SpcacwError, match=r"2 silos × 3 roles are 6, but only 4 of the 6 roles"):
        draw_roles(sizes, 2, 3, 5, np.random.default_rng(0), "characters")


@pytest.mark.parametrize(("silos", "roles"), [(15, 7), (30, 3)])
def test_the_papers_silos(make, silos, roles):
    setting = make("shakespeare", silos=silos, roles_per_silo=roles)
    setting.prepare()
    assert setting.num_silos == silos
    assert (setting.num_classes, setting.input_shape) == (80, (50,))
    assert (setting.group_kind, setting.groups, setting.oracle(0)) == ("none", [None] * silos, [])
    drawn = np.concatenate(setting.roles_of_silos)
    assert len(set(drawn.tolist())) == silos * roles
    assert min(len(setting.roles[role].text) for role in drawn) >= 5000


def test_a_silos_windows_tile_its_roles_in_time_and_do_not_overlap(make):
    setting = make("shakespeare", window_stride=50)
    train, test = setting.train(4), setting.test(4)
    for data in (train, test):
        assert data.x.dtype == data.y.dtype == torch.int64
        assert data.x.shape == data.y.shape == (len(data.y), 50)
        assert torch.equal(data.x[:, 1:], data.y[:, :-1]), "labels are the next characters"
        assert data.weight is None
    at_train = at_test = 0
    for role in setting.roles_of_silos[4]:
        text = torch.from_numpy(setting.roles[role].tokens.astype(np.int64))
        cut = len(text) - round(len(text) / 10)
        n, m = (cut - 1) // 50, (len(text) - cut - 1) // 50
        mine, last = train.x[at_train : at_train + n], test.x[at_test : at_test + m]
        assert torch.equal(mine.flatten(), text[: 50 * n])
        assert torch.equal(last.flatten(), text[cut : cut + 50 * m])
        assert train.y[at_train + n - 1, -1] == text[50 * n]
        assert 50 * n < cut, "the last label lies in the training text, too"
        at_train, at_test = at_train + n, at_test + m
    assert (at_train, at_test) == (len(train.y), len(test.y))
    assert setting.train(4) is train
    assert train.label_counts(80).sum() == train.y.numel()


def test_roles_follow_the_seed_and_samples_can_be_fewer(make):
    first, other = make("shakespeare"), make("shakespeare", seed=1)
    assert not np.array_equal(first.roles_of_silos, other.roles_of_silos)
    few = make("shakespeare", samples_per_silo=20, test_samples=5)
    assert (len(few.train(0).y), len(few.test(0).y)) == (20, 5)
    assert set(rows(few.train(0).x)) <= set(rows(first.train(0).x))


def test_stride_1_is_leafs_way_and_leaves_the_test_alone(make):
    plain, dense = make("shakespeare"), make("shakespeare", window_stride=1)
    texts = [len(plain.roles[role].text) for role in plain.roles_of_silos[0]]
    assert len(dense.train(0).y) == sum(n - round(n / 10) - 50 for n in texts)
    assert torch.equal(dense.test(0).x, plain.test(0).x)


def test_windows_that_overlap_are_not_independent(make):
    """Text that is 50 characters long is one sample, however many windows begin in it."""
    dense, apart = make("shakespeare").train(0), make("shakespeare", window_stride=50).train(0)
    assert dense.independent == pytest.approx(len(dense.y) / 5)
    assert dense.independent == pytest.approx(len(apart.y), rel=0.01)
    assert (apart.independent, make("shakespeare").test(0).independent) == (None, None)
    assert make("shakespeare", samples_per_silo=20).train(0).independent is None


def test_more_roles_than_the_text_has_are_refused_before_training(make):
    with pytest.raises(SpcacwError, match=r"50 silos × 7 roles are 350, but only 268 of the 1129"):
        make("shakespeare", silos=50).prepare()
    make("shakespeare", silos=50, role_characters=2000).prepare()


def test_a_silo_whose_roles_are_too_short_is_named(make):
    with pytest.raises(SpcacwError, match=r"Silo \d+ of shakespeare has no data for the test"):
        make("shakespeare", silos=300, roles_per_silo=1, role_characters=81).prepare()
