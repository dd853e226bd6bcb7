"""The header of a segment, for code that reads it without the C++ module (csrc/layout.h)."""

from __future__ import annotations

import numpy as np

__all__ = ["HEADER", "LAYOUT", "LINE", "MAGIC"]

LINE = 128  # bytes of a line; the header takes one, and allocations begin at a line
MAGIC = b"pysamplr"
LAYOUT = 1  # the version that this package writes and reads
HEADER = np.dtype(
    [("magic", "S8"), ("layout", "<u4"), ("creator", "<u4"), ("size", "<u8"), ("id", "<u8")]
)
