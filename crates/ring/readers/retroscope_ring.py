#!/usr/bin/env python3
"""Reads the packets of a ring that another process writes, or has written.

    ring = Ring("/dev/shm/ring")            # or /proc/PID/fd/N of a memfd
    reader = Reader(ring)
    for packet in reader.poll():            # everything that the ring has now
        print(packet.stamp_ns, len(packet.data))
    print(reader.missed)

This module needs Linux and nothing but the standard library. As a program it prints packets:

    python3 retroscope_ring.py [--follow] RING

A line has: number of the producer, number of the record, stamp in ns since the UNIX epoch, bytes
on the wire, interface, direction, whether a VLAN tag was restored, shard, captured bytes in
hexadecimal digits. With --follow the program ends when the writer of the ring ends.

The module reads the file with pread(2), so writers never wait for it. If the file is shortened
meanwhile, the result is an error, where mmap(2) would give SIGBUS. The writer may overwrite a
bucket while this module copies the bucket. The reader notices this, drops the copy, and counts the
records that it missed.

Each pread reads after the pread before, also on processors that reorder loads: the kernel finds
each page of a file with atomic operations that are barriers.

SPDX-License-Identifier: MIT OR Apache-2.0
"""

import fcntl
import os
import stat
import struct
import sys
import time
from typing import NamedTuple

LAYOUT = 4  # `VERSION` of src/storage/layout.rs
MAGIC = 0x726574726F515101  # "retroQQ\x01"
STEPS_MAX = 1024
OPEN = 2  # state of a bucket; 3 is closed

_ALIGNMENT = 2 << 20
# The parts of the region that this module reads. `x` skips bytes of other fields.
_BUCKET = struct.Struct("=QQ32xqQ8xQ48x")  # control, committed, base, producer, first record
_DESCRIPTOR = struct.Struct("=QQ")
_EXTENSION = struct.Struct("=HHIq")
_INTERFACE = struct.Struct("=HBBIH54s")
_STEP = struct.Struct("=QQQq")


class RingError(Exception):
    """The file is not a ring that this module can read, or a part of the ring is damaged."""


class Overwritten(RingError):
    """The writer claimed the bucket for new records. This is normal operation."""


class Damaged(RingError):
    """A bucket contradicts itself, although nobody wrote meanwhile."""


class Bucket(NamedTuple):
    index: int
    generation: int
    producer: int
    first: int  # number of the first record, counted per producer
    packets: int  # records that can be copied
    base_ns: int
    is_open: bool


class Interface(NamedTuple):
    name: str
    link_type: int
    snaplen: int  # 0: no limit
    time_domain: int
    clock: int


class Step(NamedTuple):
    producer: int
    clock: int
    first: int
    offset_ns: int


class Packet(NamedTuple):
    producer: int
    record: int  # number, counted per producer
    time_ns: int  # ring time: the stamp minus the offset of the clock's last step
    stamp_ns: int  # since the UNIX epoch
    wire_len: int
    interface: int
    direction: int  # 0 unknown, 1 inbound, 2 outbound
    tag_restored: bool
    shard: int
    data: memoryview  # of a copy that belongs to this process


class Ring:
    """An open ring. All contents of the file are foreign input, and are checked before use."""

    def __init__(self, path):
        # Non-blocking, because the path may name a pipe.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        self._fd = os.open(path, flags)
        try:
            self._check_header(os.fstat(self._fd))
        except BaseException:
            self.close()
            raise

    def close(self):
        """Closes the file. Packets stay valid, because they are copies."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.close()

    def _check_header(self, status):
        """The layout is a function of three counts. Computes all offsets again, and believes the
        header only if every offset in it is the same."""
        if not stat.S_ISREG(status.st_mode):
            raise RingError("not a regular file")
        (state,) = self._words(1024, 1)  # before the header, which it orders
        words = self._words(0, 20)
        if words[0] == int.from_bytes(MAGIC.to_bytes(8, "little"), "big"):
            raise RingError("written with the other byte order")
        if words[0] != MAGIC:
            raise RingError("not a ring of retroscope")
        if words[1] not in (0, LAYOUT):
            raise RingError(f"has layout {words[1]}, this module reads layout {LAYOUT}")
        if words[1] == 0:
            raise RingError("not ready yet")
        if words[2] > status.st_size:
            raise RingError(f"cut short: it has {status.st_size} bytes and needs {words[2]}")
        producers, buckets, bucket_bytes = words[3], words[5], words[7]
        if (
            not 1 <= producers <= 65535 // 4
            or not 1 <= buckets <= 65535
            or not 16 <= bucket_bytes <= 256 << 20
            or bucket_bytes % 16
        ):
            raise RingError("the header is damaged")
        self.producers, self.buckets, self.bucket_bytes = producers, buckets, bucket_bytes
        self._headers = 4096 + producers * 128
        self._steps = self._headers + buckets * 128
        self._interfaces = self._steps + STEPS_MAX * 32
        least = self._interfaces + 1024 * 64
        self._first_bucket = -(-least // _ALIGNMENT) * _ALIGNMENT
        self._interfaces_max = min((self._first_bucket - self._interfaces) // 64, 65536)
        end = self._first_bucket + buckets * bucket_bytes
        computed = {
            2: -(-end // _ALIGNMENT) * _ALIGNMENT,
            4: 4096,
            6: self._headers,
            8: self._first_bucket,
            9: self._interfaces,
            10: self._interfaces_max,
            16: self._steps,
            17: STEPS_MAX,
        }
        if any(words[index] != value for index, value in computed.items()):
            raise RingError("the header is damaged")
        if state == 0:
            raise RingError("not ready yet")
        self.created_ns = _signed(words[11])
        self.process = words[14]

    def _read(self, offset, length):
        """Bytes of the file, all of them: a file that became shorter is an error."""
        pieces = []
        while length > 0:
            piece = os.pread(self._fd, length, offset)
            if not piece:
                raise RingError("the file is cut short")
            pieces.append(piece)
            offset += len(piece)
            length -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _words(self, offset, count):
        return struct.unpack(f"={count}Q", self._read(offset, count * 8))

    def writer(self):
        """`"running"`, `"ended"` (the process closed its ring) or `"killed"`. A writer locks the
        file while its ring lives."""
        # The lock first: a writer stores that it ended before it releases the lock.
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            locked = False
        except BlockingIOError:
            locked = True
        if self._words(1024, 1)[0] == 2:
            return "ended"
        return "running" if locked else "killed"

    def interfaces(self):
        """The interfaces by number. A truncated name ends in `…`."""
        count = min(self._words(1032, 1)[0], self._interfaces_max)
        # The count orders the slots, which are never written again.
        listed = []
        for slot in _INTERFACE.iter_unpack(self._read(self._interfaces, count * 64)):
            link_type, time_domain, length, snaplen, clock, name = slot
            name = name[: length & 0x7F].decode(errors="replace") + "…" * (length >> 7)
            listed.append(Interface(name, link_type, snaplen, time_domain, clock))
        return listed

    def steps(self):
        """The steps of the clocks. Must be read after the records were copied."""
        # The version of a slot, its first word, is odd while the slot is written and never
        # repeats. A slot that is the same in two readings was therefore not written meanwhile.
        for _attempt in range(8):
            before, after = (self._read(self._steps, STEPS_MAX * 32) for _ in range(2))
            if before == after:
                break
        pairs = zip(_STEP.iter_unpack(before), _STEP.iter_unpack(after))
        slots = [slot for slot, other in pairs if slot == other and slot[0] and slot[0] % 2 == 0]
        return [Step(place >> 16, place & 0xFFFF, first, ns) for _, place, first, ns in slots]

    def bucket(self, index):
        """The bucket at this index. `None`: free, claimed, changed while its header was read, or a
        header that contradicts itself."""
        if not 0 <= index < self.buckets:
            raise IndexError(index)
        first, second = (self._read(self._headers + index * 128, 128) for _ in range(2))
        return self._bucket(index, _BUCKET.unpack(first), _BUCKET.unpack(second))

    def bucket_list(self):
        """All buckets for which `bucket` finds something."""
        first, second = (self._read(self._headers, self.buckets * 128) for _ in range(2))
        pairs = zip(_BUCKET.iter_unpack(first), _BUCKET.iter_unpack(second))
        buckets = (self._bucket(index, *pair) for index, pair in enumerate(pairs))
        return [bucket for bucket in buckets if bucket is not None]

    def _bucket(self, index, first_reading, second_reading):
        """pread may copy a word in pieces while the writer changes the word, so one reading proves
        nothing. The words that identify the records must be the same in both readings. The number
        of committed records only grows in a generation, so the smaller number is committed."""
        control, committed, base_ns, producer, first = first_reading
        again, committed_again, *same = second_reading
        packets = min(committed, committed_again)
        is_readable = control & 3 >= OPEN and again & 3 >= OPEN
        if not is_readable or control >> 16 != again >> 16 or same != [base_ns, producer, first]:
            return None
        if packets > self.bucket_bytes // 16 or producer >= self.producers:
            return None
        # From the first reading: the bucket may have closed after the marks were read.
        is_open = control & 3 == OPEN
        return Bucket(index, control >> 16, producer, first, packets, base_ns, is_open)

    def copy(self, bucket, skip=0):
        """Copies the committed records of a bucket after the first `skip`; from an open bucket, the
        records committed now. Returns a list of packets, or raises a `RingError` such as
        `Overwritten`."""
        now = self.bucket(bucket.index)
        if now is None or _identity(now) != _identity(bucket):
            raise Overwritten(f"bucket {bucket.index} was overwritten")
        error, packets = None, []
        try:
            descriptors, payload, begin = self._copy_bytes(now, skip)
        except Damaged as damaged:
            error = damaged
        # All pieces were copied before this reading, which finds out whether they are of the
        # generation. The number of committed records never falls in a generation.
        after = self.bucket(bucket.index)
        if after is None or _identity(after) != _identity(now) or after.packets < now.packets:
            raise Overwritten(f"bucket {bucket.index} was overwritten")
        if error is not None:
            raise error
        if descriptors:
            packets = _decode(now, now.first + skip, descriptors, payload, begin)
        steps = self.steps()
        return self._stamped(packets, steps) if steps else packets

    def _copy_bytes(self, bucket, skip):
        """The descriptors of a bucket after the first `skip`, in order, the payload, and the offset
        of the payload in the bucket. Believes nothing that leads out of the bucket."""
        if skip >= bucket.packets:
            return [], memoryview(b""), 0
        start = self._first_bucket + bucket.index * self.bucket_bytes
        room = self.bucket_bytes - bucket.packets * 16  # for the payload
        block = self._read(start + room, (bucket.packets - skip) * 16)
        descriptors = list(_DESCRIPTOR.iter_unpack(block))[::-1]
        begin = descriptors[0][1] & 0xFFFFFFF
        last = descriptors[-1][1]
        end = (last & 0xFFFFFFF) + (last >> 28 & 0x7FFFF)
        if last >> 58 & 1:
            if (last & 0xFFFFFFF) + 16 > room:
                raise Damaged(f"bucket {bucket.index} is damaged: a record ends outside of it")
            end += _EXTENSION.unpack(self._read(start + (last & 0xFFFFFFF), 16))[0]
        if not begin <= end <= room:
            raise Damaged(f"bucket {bucket.index} is damaged: a record ends outside of it")
        return descriptors, memoryview(self._read(start + begin, end - begin)), begin

    def _stamped(self, packets, steps):
        """Adds to the time of each packet the offset of the last step of its clock before it."""
        clocks = [interface.clock for interface in self.interfaces()]
        stamped = []
        for packet in packets:
            # A packet of an interface that is not in the table has clock 0.
            clock = clocks[packet.interface] if packet.interface < len(clocks) else 0
            mine = [
                (step.first, step.offset_ns)
                for step in steps
                if (step.producer, step.clock) == (packet.producer, clock)
                and step.first <= packet.record
            ]
            if mine:
                stamp_ns = _signed(packet.time_ns + max(mine)[1])
                packet = packet._replace(stamp_ns=stamp_ns)
            stamped.append(packet)
        return stamped


class Reader:
    """Copies each record of a ring once, in the order of its producer, beginning with the oldest.

    `missed` counts the records that were overwritten before this reader copied them, without the
    records before this reader's first bucket of a producer. `damaged` counts the records in damaged
    buckets."""

    def __init__(self, ring):
        self._ring = ring
        self._positions = [None] * ring.producers  # number of the next record
        self._last = [None] * ring.producers  # the last bucket copied or found damaged
        self.missed = 0
        self.damaged = 0

    def poll(self):
        """Yields the packets that the ring has now and that this reader did not yet copy, a bucket
        of each producer in turn. Ends after a turn without new packets."""
        news = True
        while news:
            news = False
            for producer in range(self._ring.producers):
                packets = self._next(producer)
                news = news or bool(packets)
                yield from packets

    def _next(self, producer):
        """The next packets of a producer, at most one bucket."""
        if self._is_idle(producer):
            return []
        # Bounded, so that no file can keep the reader here. Each damaged bucket is passed once.
        for _attempt in range(64 + self._ring.buckets):
            found = self._find(producer)
            position = self._positions[producer]
            if found is not None and position is not None and found.first > position:
                # The first search may have passed by a bucket that opened meanwhile. Every bucket
                # before `found` is open or closed now, or was overwritten.
                again = self._find(producer)
                if again is not None and again.first < found.first:
                    found = again
            if found is None:
                return []
            start = found.first if position is None else max(found.first, position)
            try:
                packets = self._ring.copy(found, start - found.first)
                end = start + len(packets)
            except Overwritten:
                continue
            except Damaged:
                packets, end = [], found.first + found.packets
                self.damaged += end - start
            self.missed += 0 if position is None else start - position
            self._positions[producer], self._last[producer] = end, found
            if packets:
                return packets
        return []

    def _find(self, producer):
        """The bucket of a producer with the oldest records from its position on."""
        position = self._positions[producer] or 0
        buckets = (
            bucket
            for bucket in self._ring.bucket_list()
            if bucket.producer == producer and bucket.first + bucket.packets > position
        )
        return min(buckets, key=lambda bucket: bucket.first, default=None)

    def _is_idle(self, producer):
        """Whether the last bucket of a producer is still open and has no new records. Then no later
        bucket of the producer has any."""
        last = self._last[producer]
        now = self._ring.bucket(last.index) if last else None
        if now is None or _identity(now) != _identity(last) or not now.is_open:
            return False
        return now.first + now.packets == self._positions[producer]


def _identity(bucket):
    """What is the same as long as the bucket has the same records."""
    return bucket._replace(packets=0, is_open=False)


def _decode(bucket, record, descriptors, payload, begin):
    """The packets of copied descriptors, the first with number `record`. Each record begins where
    the record before it ends."""
    packets, at = [], 0
    for low, high in descriptors:
        captured, interface = high >> 28 & 0x7FFFF, high >> 47 & 0xFF
        time_ns, wire_len = _signed(bucket.base_ns + _signed(low, 48)), low >> 48
        if (high & 0xFFFFFFF) - begin != at or captured > 256 << 10:
            raise Damaged(f"bucket {bucket.index} is damaged: a record is not where it should be")
        if high >> 58 & 1:
            if at + 16 > len(payload):
                raise Damaged(f"bucket {bucket.index} is damaged: a record ends outside of it")
            length, interface, wire_len, time_ns = _EXTENSION.unpack_from(payload, at)
            if length < 16:
                raise Damaged(f"bucket {bucket.index} is damaged: an extension is too short")
            at += length
        data = payload[at : at + captured]
        at += captured
        if at > len(payload):
            raise Damaged(f"bucket {bucket.index} is damaged: a record ends outside of it")
        direction, tag_restored, shard = high >> 55 & 3, bool(high >> 57 & 1), high >> 59
        packets.append(
            Packet(bucket.producer, record + len(packets), time_ns, time_ns, wire_len, interface,
                   direction, tag_restored, shard, data)
        )  # fmt: skip
    return packets


def _signed(word, bits=64):
    """The low bits of a number, the highest of them as the sign."""
    sign = 1 << bits - 1
    return ((word & (1 << bits) - 1) ^ sign) - sign


def main(arguments):
    follow = "--follow" in arguments
    paths = [argument for argument in arguments if argument != "--follow"]
    if len(paths) != 1:
        print("usage: retroscope_ring.py [--follow] RING", file=sys.stderr)
        return 2
    try:
        with Ring(paths[0]) as ring:
            reader, packets, ended = Reader(ring), 0, False
            while not ended:
                # Asked before the packets are read, so that no packet of an ended writer is left.
                writer = ring.writer()
                ended = not follow or writer != "running"
                before = packets
                for packet in reader.poll():
                    fields = packet[:2] + packet[3:-1]
                    numbers = " ".join(str(int(field)) for field in fields)
                    sys.stdout.write(f"{numbers} {packet.data.hex()}\n")
                    packets += 1
                sys.stdout.flush()
                if not ended and packets == before:
                    time.sleep(0.01)
    except (RingError, OSError) as error:
        print(f"retroscope_ring: {paths[0]}: {error}", file=sys.stderr)
        return 1
    writer = {"running": "is running", "ended": "ended", "killed": "was killed"}[writer]
    counts = f"{packets} packets, {reader.missed} missed, {reader.damaged} damaged"
    print(f"{counts}; the writer {writer}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
