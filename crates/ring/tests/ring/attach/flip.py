"""As flip.c, with retroscope_ring.py: `flip.py FOLDER RING OFFSET:LENGTH…`, where FOLDER has the
module. Changes the first and the last byte of each word. An exception other than RingError fails."""

import os
import sys

sys.path.insert(0, sys.argv[1])
from retroscope_ring import Reader, Ring, RingError  # noqa: E402


def read_all(path):
    """Reads everything. Returns the number of packets, or `None` if the file is refused."""
    try:
        ring = Ring(path)
    except RingError:
        return None
    with ring:
        ring.writer()
        ring.interfaces()
        ring.steps()
        for index in range(ring.buckets):
            ring.bucket(index)
        return sum(len(packet.data) >= 0 for packet in Reader(ring).poll())


path, good, refused, taken = sys.argv[2], read_all(sys.argv[2]), 0, 0
file = os.open(path, os.O_RDWR)
for area in sys.argv[3:]:
    start, length = map(int, area.split(":"))
    for offset in range(start, start + length):
        if offset % 8 not in (0, 7):
            continue
        byte = os.pread(file, 1, offset)
        for flip in (0x01, 0xFF):
            os.pwrite(file, bytes([byte[0] ^ flip]), offset)
            if read_all(path) is None:
                refused += 1
            else:
                taken += 1
        os.pwrite(file, byte, offset)
assert read_all(path) == good
with Ring(path) as ring:
    os.ftruncate(file, 0)
    try:
        sum(1 for _ in Reader(ring).poll())
        error = "no error"
    except RingError as raised:
        error = str(raised)
print(good, refused, taken, error)
