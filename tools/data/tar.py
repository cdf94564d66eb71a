"""A few named files out of a tar archive, read in one pass and in bounded memory.

The standard library's tarfile reads the extended headers of an archive whole, whatever size they claim (a gzip file of
a few MB can claim gigabytes), and follows sizes backwards in the Python versions that are about. Here a member is
either wanted, of the expected size, and kept, or skipped.
"""

import gzip
import zlib

_BLOCK = 512
_CHUNK = 2**20

# The largest archive of CIFAR holds 186 MB. Skipping more than this is a waste of minutes.
MOST_BYTES = 2**29

_REGULAR = (b"0", b"\0")


class TarError(ValueError):
    """What is wrong with an archive and what to do about it, without the path."""


def read_members(path, limits, needed):
    """Read the tar file at `path`, compressed with gzip or not, to its end.

    limits: name -> most bytes, for the names that are looked for, at the top of the archive or in a folder there.
    needed: those whose content is wanted. Returns a dict of the names found -> bytes, b"" for what is not needed.
    Raises TarError for a file that is no tar archive, damaged or cut short, too large, or holds one of the names
    twice, as a link or device, or larger than its limit. OSError where the file cannot be read.
    """
    with open(path, "rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            return _walk(_Counted(gzip.GzipFile(fileobj=raw) if packed else raw), limits, needed)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            reason = str(error).rstrip(".") or "no more data"
            raise TarError(f"the archive is damaged or cut short ({reason}); fetch it again") from None


class _Counted:
    """A stream that gives exactly what is asked for, and not more than MOST_BYTES in all."""

    def __init__(self, file):
        self.file = file
        self.left = MOST_BYTES

    def some(self, size):
        """Up to `size` bytes; fewer at the end only."""
        self.left -= size
        if self.left < 0:
            raise TarError(f"the archive holds more than {MOST_BYTES >> 20} MiB; give one of the published archives")
        return self.file.read(size)

    def exactly(self, size):
        data = self.some(size)
        if len(data) < size:
            raise EOFError("the file ends too early")
        return data


def _walk(stream, limits, needed):
    found = {}
    first = True
    while True:
        header = stream.some(_BLOCK)
        # The end is marked by blocks of zeros, which some writers leave out.
        if not header.strip(b"\0"):
            break
        name, kind, size = _parse(header, first)
        first = False
        padded = -(-size // _BLOCK) * _BLOCK
        if name not in limits:
            _skip(stream, padded)
            continue
        if kind not in _REGULAR:
            raise TarError(f"{name} in the archive is a link or device, not a file; fetch it again")
        if name in found:
            raise TarError(f"the archive holds {name} twice; fetch it again")
        if size > limits[name]:
            raise TarError(f"{name} in the archive is larger than the published one; fetch it again")
        if name in needed:
            found[name] = stream.exactly(padded)[:size]
        else:
            found[name] = b""
            _skip(stream, padded)
    # Only at its end does gzip compare the checksum.
    while stream.some(_CHUNK):
        pass
    return found


def _skip(stream, size):
    for start in range(0, size, _CHUNK):
        stream.exactly(min(_CHUNK, size - start))


def _parse(header, first):
    """(name without its folder, type, size) of a header of 512 bytes; deeper members get an empty name."""
    try:
        size, claimed = (int(header[start:end].rstrip(b" \0") or b"0", 8) for start, end in ((124, 136), (148, 156)))
        if size < 0 or claimed != sum(header) - sum(header[148:156]) + 8 * ord(" "):
            raise ValueError
    except ValueError:
        if first:
            raise TarError("is a file, not a folder of images, nor a tar archive; give the folder, or an archive of "
                           "CIFAR-10 or CIFAR-100") from None
        raise TarError("the archive is damaged or cut short (a broken header); fetch it again") from None
    parts = header[:100].partition(b"\0")[0].decode("latin1").removeprefix("./").split("/")
    # Extended headers are skipped: the names looked for are short and plain.
    return parts[-1] if len(parts) <= 2 else "", header[156:157], size
