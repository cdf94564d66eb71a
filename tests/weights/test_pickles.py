"""The interpreter of pickles with other dialects: CIFAR's archives of Python 2, keys, limits, several in one stream."""

import mmap
import pickle
import struct
from collections import OrderedDict

import numpy as np
import pytest
from weights import pickles
from weights.pickled_arrays import ARRAY_NAMES, ARRAYS
from weights.pickles import Dialect, Refused, Word

PLAIN = Dialect({})
CIFAR = Dialect(ARRAY_NAMES, instructions=1_000_000, keys=(str, bytes))


def read_pickle(data, dialect=ARRAYS):
    return pickles.read_pickle(data, dialect)


def old_text(text):
    """A string as Python 2 pickled it."""
    return b"T" + struct.pack("<I", len(text)) + text if len(text) > 255 else b"U" + bytes([len(text)]) + text


def old_batch(images):
    """A batch of CIFAR: pickle protocol 2 of Python 2, where text and bytes were one."""
    dtype = b"cnumpy\ndtype\n" + old_text(b"u1") + b"K\0K\1\x87R(K\3" + old_text(b"|") + b"NNN" \
        + b"J\xff\xff\xff\xff" * 2 + b"K\0tb"  # fmt: skip
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + old_text(b"b") + b"\x87R(K\1M"
    array += struct.pack("<H", len(images)) + b"M\0\x0c\x86" + dtype + b"\x89" + old_text(images.tobytes()) + b"tb"
    labels = b"](" + b"".join(bytes([75, i % 10]) for i in range(len(images))) + b"e"
    return (b"\x80\x02}q\1(" + old_text(b"data") + array + old_text(b"labels") + labels
            + old_text(b"filenames") + b"]" + old_text(b"s_\xe9.png") + b"au.")  # fmt: skip


def test_batches_of_python_2():
    images = np.random.default_rng(0).integers(0, 256, (20, 3072), dtype=np.uint8)
    data = old_batch(images)
    expected = pickle.loads(data, encoding="latin1")  # the same bytes are a pickle for Python too
    found = read_pickle(data, CIFAR)
    assert found.keys() == expected.keys() == {"data", "labels", "filenames"}
    assert np.array_equal(found["data"], images) and np.array_equal(expected["data"], images)
    assert found["data"].dtype == np.uint8 and found["labels"] == expected["labels"] == [i % 10 for i in range(20)]
    assert found["filenames"] == ["s_\xe9.png"]


def test_batches_pickled_again_with_keys_of_bytes():
    content = {b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [3, 99]}
    for protocol in (2, 3, 4):
        found = read_pickle(pickle.dumps(content, protocol), CIFAR)
        assert found.keys() == content.keys() and found[b"data"].shape == (2, 3072)
    with pytest.raises(Refused, match="a dictionary key of type bytes"):
        read_pickle(pickle.dumps(content, 4))


def test_one_text_for_many_arrays_is_paid_for_each_time():
    data = old_batch(np.zeros((2, 3072), np.uint8))
    shared = old_text(bytes(6144)) + b"q\7"
    many = b"".join(b"U\1" + bytes([65 + i]) + data[data.index(b"cnumpy.core") : data.index(b"T\0\x18\0\0")] + b"h\7tb"
                    for i in range(20))  # fmt: skip
    with pytest.raises(Refused, match="more bytes than the file has"):
        read_pickle(b"\x80\x02}(" + old_text(b"data") + shared + many + b"u.", CIFAR)


@pytest.mark.parametrize("key", ["a", 1, 1.5, None, True, b"a", (1, "a")])
def test_types_of_keys_are_the_dialects_choice(key):
    data = pickle.dumps({key: 1}, 4)
    with pytest.raises(Refused, match=f"a dictionary key of type {type(key).__name__}"):
        read_pickle(data, PLAIN._replace(keys=()))
    assert read_pickle(data, PLAIN._replace(keys=(type(key), int, str))) == {key: 1}


def test_keys_made_to_collide():
    dialect = PLAIN._replace(keys=(int,))
    for key in (2**20, -1, 2**53, -(2**70)):
        with pytest.raises(Refused, match="huge number"):
            read_pickle(pickle.dumps({key: 1}, 4), dialect)
    assert read_pickle(pickle.dumps({2**20 - 1: 1}, 4), dialect) == {2**20 - 1: 1}


@pytest.mark.parametrize("protocol", [2, 4])
def test_long_text_is_latin_only(protocol):
    # One letter beyond 255 makes every letter of a text take two or four bytes.
    for letters, refused in (("a", False), ("\xe9", False), ("\u0394", True), ("\U0001f600", True)):
        data = pickle.dumps("a" * (1 << 20) + letters, protocol)
        if refused:
            with pytest.raises(Refused, match="a very long text"):
                read_pickle(data, PLAIN)
        else:
            assert len(read_pickle(data, PLAIN)) == (1 << 20) + 1
    assert read_pickle(pickle.dumps("\U0001f600" * 1000, protocol), PLAIN)


def test_a_key_twice_is_refused():
    for body in (b"}(U\1aK\1U\1aK\2u.", b"}U\1aK\1sU\1aK\2s.", b"ccollections\nOrderedDict\n)R(U\1aK\1U\1aK\2u."):
        with pytest.raises(Refused, match="the key 'a' twice in one dictionary"):
            read_pickle(b"\x80\x02" + body)


def test_attributes_of_an_ordered_dict_are_passed_over():
    state = OrderedDict(a=1)
    state._metadata = {"version": 1}
    assert read_pickle(pickle.dumps(state, 2)) == {"a": 1}
    with pytest.raises(Refused, match="a change to an object"):
        read_pickle(b"\x80\x02}}b.")


def test_the_limit_of_instructions_is_the_dialects():
    data = b"\x80\x02](" + b"N" * 200 + b"e."
    assert len(read_pickle(data, PLAIN._replace(instructions=204))) == 200
    with pytest.raises(Refused, match="more than 203 instructions"):
        read_pickle(data, PLAIN._replace(instructions=203))


def test_trees_that_never_end_or_grow():
    shared = b"](" + b"h\0h\0e"
    growing = b"\x80\x02]q\0" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(30)) + b"."
    for data, part in {
        b"\x80\x02]q\0h\0a.": "levels of nesting",
        b"\x80\x02}q\0U\1ah\0s.": "levels of nesting",
        growing: "more than 100000 values",
    }.items():
        with pytest.raises(Refused, match=part):
            read_pickle(data)
    assert read_pickle(b"\x80\x02]K\7aq\0" + shared + b".") == [[7], [7]]


def test_words_of_a_dialect_call_its_own_functions_alone():
    names = {"os system": Word("os.system", call=lambda given, _: ["called with", *given]), "a b": 5}
    dialect = Dialect(names)
    assert read_pickle(b"\x80\x02cos\nsystem\nU\2ls\x85R.", dialect) == ["called with", "ls"]
    assert read_pickle(b"\x80\x02ca\nb\n.", dialect) == 5
    for body, part in {
        b"cos\nsystem\n)\x81.": "the pickle instruction NEWOBJ of os.system",
        b"cos\nsystem\n.": "os.system as a value",
        b"ca\nb\n)R.": "a call",
        b"cos\npopen\n.": "os.popen",
        b"K\1Q.": "BINPERSID",
    }.items():
        with pytest.raises(Refused, match=part):
            read_pickle(b"\x80\x02" + body, dialect)
    assert read_pickle(b"\x80\x02K\1Q.", Dialect({}, persistent=lambda identity: identity + 1)) == 2


def test_several_pickles_one_after_the_other(tmp_path):
    file = tmp_path / "stream"
    file.write_bytes(pickle.dumps(1, 2) + pickle.dumps({"a": [2]}, 4) + b"rest")
    with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        assert read_pickle(data, PLAIN) == 1
        assert read_pickle(data, PLAIN) == {"a": [2]}
        assert data.read() == b"rest"
