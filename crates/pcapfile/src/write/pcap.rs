//! Writes the classic format.

use std::io::Write;

use super::sink::{CountingSink, captured_len};
use crate::{
    PcapOptions, Resolution, WriteError,
    format::{LINK_TYPE_EXTRA, MAGIC_MICRO, MAGIC_NANO, captured_len_max, effective_snaplen},
};

const SECOND_NS: i64 = 1_000_000_000;

/// The last time that the format can represent, in 2106.
const TIME_NS_MAX: i64 = u32::MAX as i64 * SECOND_NS + 999_999_999;

/// Writes a pcap file to any stream.
///
/// Seconds are 32 unsigned bits. A time before 1970 or after 2106-02-07 is clamped to the nearest
/// end and counted ([`PcapWriter::times_clamped`]).
#[derive(Debug)]
pub struct PcapWriter<W: Write> {
    sink: CountingSink<W>,
    options: PcapOptions,
    captured_len_max: u32,
    times_clamped: u64,
}

impl<W: Write> PcapWriter<W> {
    /// Writes the file header.
    ///
    /// # Errors
    /// [`WriteError::Io`].
    pub fn new(inner: W, options: PcapOptions) -> Result<Self, WriteError> {
        let PcapOptions {
            link_type,
            link_type_extra,
            snaplen,
            resolution,
            byte_order,
        } = options;
        let magic = match resolution {
            Resolution::Micro => MAGIC_MICRO,
            Resolution::Nano => MAGIC_NANO,
        };
        let network = (link_type_extra & LINK_TYPE_EXTRA) | u32::from(link_type.0);
        let mut header = [0; 24];
        header[0..4].copy_from_slice(&byte_order.bytes(magic.to_le_bytes()));
        header[4..6].copy_from_slice(&byte_order.bytes([2, 0]));
        header[6..8].copy_from_slice(&byte_order.bytes([4, 0]));
        header[16..20].copy_from_slice(&byte_order.bytes(snaplen.to_le_bytes()));
        header[20..24].copy_from_slice(&byte_order.bytes(network.to_le_bytes()));
        let mut sink = CountingSink::new(inner);
        sink.write([&header, &[], &[]])?;
        let captured_len_max =
            effective_snaplen(snaplen, link_type).min(captured_len_max(link_type));
        Ok(Self {
            sink,
            options,
            captured_len_max,
            times_clamped: 0,
        })
    }

    /// Writes one record. `time_ns` is nanoseconds since the UNIX epoch, rounded down to the file's
    /// resolution. `wire_len` is written as given.
    ///
    /// # Errors
    /// [`WriteError::TooLong`] if `data` is longer than the snap length, or than readers accept for
    /// the link type. [`WriteError::Io`] and [`WriteError::Failed`] end the writer.
    pub fn record(&mut self, time_ns: i64, wire_len: u32, data: &[u8]) -> Result<(), WriteError> {
        let captured_len = captured_len(data.len(), self.captured_len_max)?;
        let order = self.options.byte_order;
        let held_ns = time_ns.clamp(0, TIME_NS_MAX);
        self.times_clamped += u64::from(held_ns != time_ns);
        // Both values fit: the maximum of the seconds is `u32::MAX`.
        let [seconds, nanoseconds] = [held_ns / SECOND_NS, held_ns % SECOND_NS]
            .map(|part| u32::try_from(part).unwrap_or(u32::MAX));
        let words = [
            seconds,
            nanoseconds / self.options.resolution.ns(),
            captured_len,
            wire_len,
        ];
        let header = words.map(|word| order.bytes(word.to_le_bytes()));
        self.sink.write([header.as_flattened(), data, &[]])
    }

    /// Flushes and returns the stream.
    ///
    /// # Errors
    /// [`WriteError::Io`] and [`WriteError::Failed`].
    pub fn finish(self) -> Result<W, WriteError> {
        self.sink.finish()
    }

    /// Number of records whose time the format cannot represent.
    pub fn times_clamped(&self) -> u64 {
        self.times_clamped
    }

    /// The output stream, for a caller that writes to memory and takes the bytes out.
    pub fn inner_mut(&mut self) -> &mut W {
        &mut self.sink.inner
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::{ByteOrder, LinkType};

    #[test]
    fn header_and_record_bytes() {
        let options = PcapOptions {
            link_type_extra: 0x3400_0000,
            snaplen: 0x1_0000,
            resolution: Resolution::Micro,
            byte_order: ByteOrder::Big,
            ..PcapOptions::new(LinkType(147))
        };
        let mut writer = PcapWriter::new(Vec::new(), options).unwrap();
        writer.record(5_000_006_999, 0x0102, &[9, 8]).unwrap();
        #[rustfmt::skip]
        assert_eq!(writer.finish().unwrap(), [
            0xa1, 0xb2, 0xc3, 0xd4, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0x34, 0, 0, 147,
            0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0, 1, 2, 9, 8,
        ]);
    }

    #[test]
    fn counts_times_it_cannot_hold() {
        let mut writer = PcapWriter::new(Vec::new(), PcapOptions::new(LinkType::ETHERNET)).unwrap();
        for time in [
            -1,
            i64::MIN,
            i64::MAX,
            0,
            i64::from(u32::MAX) * 1_000_000_000 + 999_999_999,
        ] {
            writer.record(time, 0, &[]).unwrap();
        }
        assert_eq!(writer.times_clamped(), 3);
    }

    #[test]
    fn refuses_what_readers_refuse() {
        let options = PcapOptions {
            snaplen: 4,
            ..PcapOptions::new(LinkType::ETHERNET)
        };
        let mut writer = PcapWriter::new(Vec::new(), options).unwrap();
        let refused = writer.record(0, 5, &[0; 5]);
        assert!(matches!(
            refused,
            Err(WriteError::TooLong {
                bytes: 5,
                limit: 4,
                ..
            })
        ));
        writer.record(0, 5, &[0; 4]).unwrap();
        assert_eq!(writer.finish().unwrap().len(), 24 + 16 + 4);
    }
}
