"""As flip.c, with retroscope_ring.py: `flip.py FOLDER RING OFFSET:LENGTH…`, where FOLDER has the
module. Changes the first and the last byte of each word, and all bytes of short areas. An
exception other than RingError fails."""

import os
import sys

sys.path.insert(0, sys.argv[1])
from retroscope_ring import Reader, Ring, RingError  # noqa: E402


def read_all(path):
    """Reads all in every way. Returns the number of packets and a sum over them, or `refused`."""
    try:
        ring = Ring(path)
    except RingError:
        return "refused"
    packets, total = 0, 0
    with ring:
        ring.writer()
        ring.interfaces()
        ring.steps()
        sum(1 for _ in Reader(ring).poll())
        for index in range(ring.buckets):
            bucket = ring.bucket(index)
            try:
                copied = ring.copy(bucket) if bucket else []
            except RingError:
                continue
            packets += len(copied)
            for packet in copied:
                total += sum(map(int, packet[1:3] + packet[4:-1])) + len(packet.data)
                if packet.data:
                    total += packet.data[0] + packet.data[-1]
    return f"{packets} {total % 2**64}"


path = sys.argv[2]
file = os.open(path, os.O_RDWR)
for area in sys.argv[3:]:
    start, length = map(int, area.split(":"))
    for offset in range(start, start + length):
        if length > 16 and offset % 8 not in (0, 7):
            continue
        byte = os.pread(file, 1, offset)
        for flip in (0x01, 0x10, 0xFF):
            os.pwrite(file, bytes([byte[0] ^ flip]), offset)
            print(offset, flip, read_all(path))
        os.pwrite(file, byte, offset)
with Ring(path) as ring:
    os.ftruncate(file, 0)
    try:
        sum(1 for _ in Reader(ring).poll())
        print("no error")
    except RingError as error:
        print(error)
