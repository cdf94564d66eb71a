"""Weights of strangers: damaged, hostile and greedy files end in one line, run nothing and take little memory."""

import os
import pickle
import struct
import sys
import time

import numpy as np
import pytest
from weights.files import WeightsError
from weights.paddle_file import read_weights

ARRAYS = {
    "head.weight": np.arange(12, dtype=np.float32).reshape(3, 4) / 7,
    "head.bias": np.array([0.5, -1, 2, 3e-5], np.float32),
    "steps": np.array(7, np.int64),
}


def refusal(file):
    """The one line that reading the file ends with, which must come within a second of work."""
    start = time.process_time()
    with pytest.raises(WeightsError) as caught:
        read_weights(file)
    assert time.process_time() - start < 1
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_files_that_are_no_weights(tmp_path):
    file = tmp_path / "w.pdparams"
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
    cases = {
        b"": "empty",
        b"\xff\xd8\xff\xe0" + bytes(50): "not a weights file",
        b"path label\n": "not a weights file",
        b"PK\x03\x04" + bytes(50): "PyTorch",
        magic + pickle.dumps(1001, protocol=2): "PyTorch",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n.": "PyTorch",
        b"\x80": "damaged",
        b"\x80\x04.": "damaged",
        b"\x80\x04N.": "not named weights",
        b"\x80\x04}.": "no weights",
        pickle.dumps([1, 2], protocol=4): "holds a list",
        pickle.dumps({"epoch": 3}, protocol=4): "'epoch' is not a tensor",
        pickle.dumps({"model": ARRAYS}, protocol=4): "'model' is not a tensor",
        pickle.dumps({**ARRAYS, "UnpackBigParamInfor@@": {}}, protocol=4): "UnpackBigParamInfor@@",
        pickle.dumps({1: ARRAYS["steps"]}, protocol=4): "a dictionary key of type int",
        pickle.dumps(ARRAYS["head.bias"], protocol=4): "holds a ndarray",
    }
    for data, part in cases.items():
        file.write_bytes(data)
        text = refusal(file)
        assert part in text and str(file) in text, (data[:20], text)


@pytest.mark.parametrize("protocol", [2, 4])
def test_cut_short_anywhere(tmp_path, protocol):
    whole = pickle.dumps({**ARRAYS, "big": np.zeros((64, 64), np.float32)}, protocol=protocol)
    for point in np.linspace(2, len(whole) - 1, 20).astype(int):
        (tmp_path / "w.pdparams").write_bytes(whole[:point])
        assert f"cut short ({point} bytes)" in refusal(tmp_path / "w")


def test_changed_bytes_never_end_in_another_error(tmp_path):
    whole = pickle.dumps(ARRAYS, protocol=4)
    random = np.random.default_rng(0)
    for _ in range(600):
        data = bytearray(whole)
        for place in random.integers(2, len(whole), size=random.integers(1, 4)):
            data[place] = random.integers(256)
        (tmp_path / "w.pdparams").write_bytes(bytes(data))
        try:
            read_weights(tmp_path / "w")
        except WeightsError as error:
            assert "\n" not in str(error)


class Call:
    """Pickles as a call of `function` with `arguments`, with an optional state for the result."""

    def __init__(self, function, *arguments, state=None):
        self.reduced = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.reduced


def touch(path):
    path.touch()


@pytest.mark.parametrize("protocol", [2, 4])
def test_hostile_pickles_run_nothing(tmp_path, protocol):
    trap = tmp_path / "trap"
    array = np.zeros(2, np.float32)
    cases = {
        "system": Call(os.system, f"touch {trap}"),
        "eval": Call(eval, f"open({str(trap)!r}, 'w')"),
        "exec": Call(exec, f"open({str(trap)!r}, 'w')"),
        "open": Call(open, str(trap), "w"),
        "getattr": Call(getattr, array, "tofile"),
        "load": Call(np.load, str(trap), None, True),
        "memmap": Call(np.memmap, str(trap), "u1", "w+", 0, (4,)),
        "__import__": Call(__import__, "os"),
        "a call": Call(np.ndarray, (10**12,)),
        "touch": Call(touch, trap),
    }
    for name, bomb in cases.items():
        for state in ({"w": bomb}, {"w": array, "x": (bomb, array)}, bomb, [bomb]):
            (tmp_path / "w.pdparams").write_bytes(pickle.dumps(state, protocol=protocol))
            text = refusal(tmp_path / "w")
            assert "refused" in text and name in text, text
            assert not trap.exists()


def test_the_traps_of_this_test_do_work(tmp_path):
    pickle.loads(pickle.dumps(Call(os.system, f"touch {tmp_path / 'trap'}")))
    assert (tmp_path / "trap").exists()


def test_other_ways_to_reach_code(tmp_path):
    file = tmp_path / "w.pdparams"
    cases = {
        b"\x80\x02(i__builtin__\nexec\n.": "INST",
        b"\x80\x02(cos\nsystem\nX\x02\0\0\0lso.": "os.system",
        b"\x80\x02Ppersistent\n.": "PERSID",
        b"\x80\x02\x82\x01.": "EXT1",
        b"\x80\x02cnumpy\nndarray\n)\x81.": "NEWOBJ",
        b"\x80\x02cnumpy\ndtype\n}b.": "a change to an object",
        b"\x80\x02}}b.": "a change to an object",
        b"\x80\x02X\x02\0\0\0ls(tR.": "a call",
        b"\x80\x02cnumpy\x1b[31m\nx\n.": "numpy?[31m.x",
    }
    for data, part in cases.items():
        file.write_bytes(data)
        assert part in refusal(file)


def test_arrays_of_objects_text_or_records_are_refused(tmp_path):
    for array in (np.array([{}, 1], object), np.array(["a"]), np.zeros(2, [("a", "f4")]), np.zeros(2, "c8")):
        (tmp_path / "w.pdparams").write_bytes(pickle.dumps({"w": array}, protocol=4))
        assert "dtype" in refusal(tmp_path / "w")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the process's peak memory from /proc")
def test_small_files_take_little_memory(tmp_path):
    def peak():
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

    dtype = b"cnumpy\ndtype\nX\x02\0\0\0f4K\0K\1\x87R(K\3X\1\0\0\0<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    new = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85X\1\0\0\0b\x87R"
    huge = b"\x8a\x05" + (2**38).to_bytes(5, "little")
    text = b"X" + struct.pack("<I", 2**20) + b"a" * 2**20 + b"q\1"
    encode = b"c_codecs\nencode\nh\1X\6\0\0\0latin1\x86R"
    cases = [
        b"\x80\x02}X\1\0\0\0w" + new + b"(K\1" + huge + b"\x85" + dtype + b"\x89C\4\0\0\0\0tbs.",
        b"\x80\x04}X\1\0\0\0w\x8e" + struct.pack("<Q", 2**45) + b"abc",
        b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b"}",
        b"\x80\x02}r\xff\xff\xff\x7fr\xff\xff\xff\xff.",
        b"\x80\x02(" + text + encode * 3000 + b"t.",
        b"\x80\x02(" + b"N" * 60_000 + b"tq\1}(" + b"".join(b"X\4\0\0\0%04dh\1" % i for i in range(9999)) + b"u.",
    ]
    before = peak()
    for data in cases:
        (tmp_path / "w.pdparams").write_bytes(data)
        refusal(tmp_path / "w")
    assert peak() - before < 200


def test_endless_instructions_and_deep_nests(tmp_path):
    nest = b")" + b"\x85" * 40_000
    cases = {
        b"\x80\x02" + b"N" * 200_000 + b".": "more than 100000 instructions",
        b"\x80\x02" + nest + b".": "levels of nesting",
        b"\x80\x04" + nest + b"\x94h\0\x93.": "damaged",
        b"\x80\x04}" + nest + b"Ns.": "a dictionary key of type tuple",
    }
    for data, part in cases.items():
        (tmp_path / "w.pdparams").write_bytes(data)
        assert part in refusal(tmp_path / "w")
