"""Whole files of torch.save from plain contents, without PyTorch: dictionaries of arrays, numbers, text, Namespace."""

import itertools

import numpy as np
import torch_bytes


class BFloat16:
    """float32 values kept as bfloat16, cut off."""

    def __init__(self, array):
        self.shape = array.shape
        self.bits = (np.ascontiguousarray(array, "<f4").view(np.uint32) >> 16).astype("<u2")


def save_zip(content, path):
    """Write `content`, in which np.ndarray and BFloat16 stand for tensors, as PyTorch does since 1.6; return `path`."""
    path.write_bytes(torch_bytes.zip_file(_with_tensors(content, itertools.count())))
    return path


def save_legacy(content, path):
    """The same in the format before 1.6, which the official files of 2021 have."""
    path.write_bytes(torch_bytes.stream_file(_with_tensors(content, itertools.count())))
    return path


def _with_tensors(content, keys):
    if isinstance(content, dict):
        return {name: _with_tensors(item, keys) for name, item in content.items()}
    if isinstance(content, list):
        return [_with_tensors(item, keys) for item in content]
    if isinstance(content, np.ndarray):
        return torch_bytes.tensor(content, str(next(keys)))
    if isinstance(content, BFloat16):
        size = content.bits.size
        storage = torch_bytes.Storage("BFloat16", str(next(keys)), size, content.bits.tobytes())
        return torch_bytes.tensor(content, of=storage)
    return content
