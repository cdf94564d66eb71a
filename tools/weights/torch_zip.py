"""The zip archive around PyTorch's files: which bytes of the file belong to which name."""

import struct
import zipfile
import zlib
from typing import NamedTuple

from weights.pickles import printable

# A training state of the largest published network has some 1,500.
MOST_MEMBERS = 20_000
_ENTRY = b"PK\x01\x02"


class BadArchive(ValueError):
    """The archive is none of torch.save, or made to mislead; the text says what is wrong."""


class Member(NamedTuple):
    """The place of one file in the archive."""

    start: int
    size: int
    checksum: int  # CRC-32; 0 where PyTorch was told to leave it out

    def content(self, data):
        """Its bytes. Raises ValueError where they are not those that were written."""
        content = data[self.start : self.start + self.size]
        if self.checksum and zlib.crc32(content) != self.checksum:
            raise ValueError("checksum")
        return content


def find_members(data) -> dict:
    """Members of a PyTorch archive in `data` (bytes-like with find), by their names below the archive's one folder.

    Only stored (never compressed) members with plain names are taken, and no two may share bytes: what is read can
    not be more than the file. Raises BadArchive, and ValueError for an archive that is damaged.
    """
    _check_count(data)
    try:
        with zipfile.ZipFile(data) as archive:
            entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
            end = archive.start_dir
    except (zipfile.BadZipFile, NotImplementedError, OSError) as error:
        raise ValueError("archive") from error
    found = {}
    for entry in entries:
        name = _checked_name(entry)
        if name in found:
            raise BadArchive(f"the archive holds '{printable(name)}' twice")
        found[name] = _member(data, entry)
    starts = [entry.header_offset for entry in entries][1:] + [end]
    if any(member.start + member.size > following for member, following in zip(found.values(), starts)):
        raise BadArchive("parts of the archive overlap, or reach beyond its end")
    return _below_folder(found)


def _check_count(data):
    """Reading the directory makes an object for each entry, of several times its size in the file."""
    position = count = 0
    while (position := data.find(_ENTRY, position)) >= 0:
        position += 4
        count += 1
        if count > MOST_MEMBERS:
            raise BadArchive(f"the archive has more than {MOST_MEMBERS} members")


def _checked_name(entry):
    name = entry.orig_filename
    parts = name.rstrip("/").split("/")
    if "\\" in name or "\0" in name or ":" in name or any(part in ("", ".", "..") for part in parts):
        raise BadArchive(f"the archive holds a path that leads out of it: '{printable(name)}'")
    if entry.flag_bits & 1:
        raise BadArchive(f"'{printable(name)}' in the archive is encrypted")
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
        raise BadArchive(f"'{printable(name)}' in the archive is compressed, which torch.save never does")
    return name


def _member(data, entry):
    header = data[entry.header_offset : entry.header_offset + 30]
    signature, name_size, extra_size = struct.unpack("<4s22xHH", header)
    start = entry.header_offset + 30 + name_size
    if signature != b"PK\x03\x04" or data[entry.header_offset + 30 : start] != entry.orig_filename.encode():
        raise BadArchive(f"the archive tells two names for '{printable(entry.orig_filename)}'")
    return Member(start + extra_size, entry.file_size, entry.CRC)


def _below_folder(found):
    folders = [name[: -len("data.pkl")] for name in found if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(folders) != 1:
        raise BadArchive("the archive is none of torch.save (it holds no data.pkl, or several)")
    inner = {name[len(folders[0]) :]: member for name, member in found.items() if name.startswith(folders[0])}
    if "constants.pkl" in inner or any(name.startswith("code/") for name in inner):
        raise BadArchive("it is a TorchScript program, not plain weights; save model.state_dict() with torch instead")
    return inner
