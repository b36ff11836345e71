//! Checks the files of the writers against their specifications (draft-ietf-opsawg-pcap,
//! draft-ietf-opsawg-pcapng). The parsers of this test share no code with the library's reader, and
//! need no other program.

use crate::common::every_encoding;

/// Reads numbers of one byte order from the bytes of a file, front to back.
struct Numbers<'b> {
    bytes: &'b [u8],
    is_big: bool,
}

impl<'b> Numbers<'b> {
    fn take(&mut self, len: usize) -> &'b [u8] {
        let (taken, rest) = self.bytes.split_at(len);
        self.bytes = rest;
        taken
    }

    fn next<const LEN: usize>(&mut self) -> u64 {
        let taken = self.take(LEN).iter();
        let join = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
        match self.is_big {
            true => taken.fold(0, join),
            false => taken.rev().fold(0, join),
        }
    }

    fn u32(&mut self) -> u32 {
        u32::try_from(self.next::<4>()).unwrap()
    }

    /// The next `len` bytes, whose padding to a multiple of four must be zeros.
    fn padded(&mut self, len: u32) -> &'b [u8] {
        let len = usize::try_from(len).unwrap();
        let padded = self.take(len.next_multiple_of(4));
        assert!(padded[len..].iter().all(|byte| *byte == 0), "padding");
        &padded[..len]
    }
}

/// Time in ns, length on the wire, interface, data.
type ExpectedRecord = (i64, u32, u32, Vec<u8>);

fn of_pcap(file: &[u8], is_big: bool) -> Vec<ExpectedRecord> {
    let mut file = Numbers {
        bytes: file,
        is_big,
    };
    let unit_ns = match file.u32() {
        0xa1b2_c3d4 => 1_000,
        0xa1b2_3c4d => 1,
        magic => panic!("magic {magic:x}"),
    };
    assert_eq!([file.next::<2>(), file.next::<2>()], [2, 4], "version");
    assert_eq!([file.u32(), file.u32()], [0, 0], "reserved");
    let snaplen = file.u32();
    assert_eq!(file.u32(), 1, "Ethernet");
    let mut records = Vec::new();
    while !file.bytes.is_empty() {
        let (seconds, fraction) = (file.u32(), file.u32());
        let (captured, wire_len) = (file.u32(), file.u32());
        assert!(captured <= snaplen, "{captured} bytes");
        let data = file.take(usize::try_from(captured).unwrap()).to_vec();
        let time_ns = i64::from(seconds) * 1_000_000_000 + i64::from(fraction) * unit_ns;
        records.push((time_ns, wire_len, 0, data));
    }
    records
}

fn of_pcapng(file: &[u8], is_big: bool) -> Vec<ExpectedRecord> {
    let mut file = Numbers {
        bytes: file,
        is_big,
    };
    let (mut records, mut interfaces, mut is_first) = (Vec::new(), 0, true);
    while !file.bytes.is_empty() {
        let (kind, len) = (file.u32(), file.u32());
        let bytes = file.take(usize::try_from(len).unwrap() - 12);
        assert_eq!(file.u32(), len, "both lengths of a block");
        assert_eq!(len % 4, 0, "length of a block");
        assert_eq!(kind == 0x0a0d_0d0a, is_first, "one section");
        is_first = false;
        let mut body = Numbers { bytes, is_big };
        match kind {
            0x0a0d_0d0a => {
                assert_eq!(body.u32(), 0x1a2b_3c4d, "byte order");
                assert_eq!([body.next::<2>(), body.next::<2>()], [1, 0], "version");
            }
            1 => {
                assert_eq!([body.next::<2>(), body.next::<2>()], [1, 0], "Ethernet");
                assert_eq!(body.u32(), 65_535, "snap length");
                assert_eq!(resolution(body), 9, "times in ns");
                interfaces += 1;
            }
            6 => {
                let interface = body.u32();
                assert!(interface < interfaces, "interface {interface}");
                let time_ns = u64::from(body.u32()) << 32 | u64::from(body.u32());
                let (captured, wire_len) = (body.u32(), body.u32());
                let data = body.padded(captured).to_vec();
                let time_ns = i64::try_from(time_ns).unwrap();
                records.push((time_ns, wire_len, interface, data));
            }
            // Interface statistics.
            5 => {}
            _ => panic!("a block of type {kind:x}"),
        }
    }
    records
}

/// The option `if_tsresol` of an interface: `n` for a resolution of 10⁻ⁿ seconds, 6 without the
/// option.
fn resolution(mut options: Numbers<'_>) -> u8 {
    loop {
        let (code, len) = (options.next::<2>(), options.next::<2>());
        let value = options.padded(u32::try_from(len).unwrap());
        match code {
            9 => return value[0],
            0 => return 6,
            _ => {}
        }
    }
}

#[test]
fn every_encoding_is_as_its_specification_says() {
    for (name, file, packets) in every_encoding() {
        let is_big = name.contains("Big");
        let found = match name.starts_with("pcapng") {
            true => of_pcapng(&file, is_big),
            false => of_pcap(&file, is_big),
        };
        let expected = packets.into_iter().map(|packet| {
            let interface = u32::from(packet.interface);
            (packet.time_ns, packet.wire_len, interface, packet.data)
        });
        assert_eq!(found, expected.collect::<Vec<_>>(), "{name}");
    }
}
