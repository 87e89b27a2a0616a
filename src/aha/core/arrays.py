"""Arrays from files of others: what a header claims is looked at before any room is made for it."""

from __future__ import annotations

import io
import math
from typing import IO, Any
from zipfile import ZipFile

from numpy.lib import format as npy
from numpy.typing import NDArray

MOST_VALUES = 2**28
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_arrays(content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of a `.npz` file by name, or the one of a `.npy` file under an empty name; never unpickled.

    Raises:
        ValueError: It is no such file, is damaged, or claims more values than it has.
    """
    try:
        if not content.startswith(b"PK"):
            return {"": _read(io.BytesIO(content), len(content))}
        with ZipFile(io.BytesIO(content)) as archive:
            found = {}
            for member in archive.infolist():
                with archive.open(member) as file:
                    found[member.filename.removesuffix(".npy")] = _read(file, member.file_size)
            return found
    except Exception as error:  # of zip, its codecs, or the little language that headers are written in
        raise ValueError(f"{error}") from None


def _read(file: IO[bytes], size: int) -> NDArray[Any]:
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of the format is not read")
    shape, _, kind = _HEADERS[version](file)
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count > MOST_VALUES or count * kind.itemsize > size:
        raise ValueError(f"its header claims {' x '.join(map(str, shape))} values, which are not there")
    file.seek(0)
    return npy.read_array(file, allow_pickle=False)
