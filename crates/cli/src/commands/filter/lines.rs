//! Packets as lines of text.

use std::{
    fmt,
    fs::File,
    io::{self, BufWriter, IsTerminal, Write},
};

use jiff::Timestamp;
use retroscope_packet::summary;
use retroscope_pcapfile::{FileInterface, RecordMeta};

use crate::commands::capture_file::BUFFER_BYTES;

/// Prints one line for each packet.
#[derive(Debug)]
pub(super) struct PacketLines {
    out: BufWriter<File>,
    /// Output goes to a terminal, so lines are flushed after each burst.
    is_terminal: bool,
    stamp: TimestampText,
}

impl PacketLines {
    pub(super) fn new(file: File) -> Self {
        Self {
            is_terminal: file.is_terminal(),
            out: BufWriter::with_capacity(BUFFER_BYTES, file),
            stamp: TimestampText::default(),
        }
    }

    /// Writes the line of a packet.
    pub(super) fn packet(
        &mut self,
        interface: &FileInterface,
        record: &RecordMeta,
        data: &[u8],
    ) -> io::Result<()> {
        let (second, nanosecond) = self.stamp.parts(record.time_ns);
        let summary = summary(interface.link_type, data, record.wire_len);
        writeln!(self.out, "{second}.{nanosecond:09}Z {summary}")
    }

    /// Flushes lines on a terminal, because the input may pause now.
    pub(super) fn burst_end(&mut self) -> io::Result<()> {
        if self.is_terminal {
            self.out.flush()?;
        }
        Ok(())
    }

    /// Flushes the buffer.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Formats times. Caches the text of the last second, because a packet often has the same second as
/// the previous packet.
#[derive(Debug, Default)]
struct TimestampText {
    second: Option<i64>,
    text: String,
}

impl TimestampText {
    /// The time as RFC 3339 text in UTC, down to the second and without `Z`, and the nanoseconds of
    /// this second.
    fn parts(&mut self, time_ns: i64) -> (&str, i64) {
        let second = time_ns.div_euclid(1_000_000_000);
        if self.second != Some(second) {
            self.second = Some(second);
            self.text.clear();
            // An `i64` of nanoseconds is within the years 1677 to 2262, which a `Timestamp` holds.
            let timestamp = Timestamp::from_second(second).unwrap_or(Timestamp::UNIX_EPOCH);
            // Writing into a `String` cannot fail.
            let _ = fmt::Write::write_fmt(&mut self.text, format_args!("{timestamp}"));
            self.text.truncate(self.text.len().saturating_sub(1));
        }
        (&self.text, time_ns.rem_euclid(1_000_000_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_have_nine_digits_and_go_anywhere() {
        let mut stamp = TimestampText::default();
        for (time_ns, text) in [
            (1_795_202_103_123_456_789, "2026-11-20T19:15:03.123456789"),
            (1_795_202_103_000_000_001, "2026-11-20T19:15:03.000000001"),
            (0, "1970-01-01T00:00:00.000000000"),
            (-1, "1969-12-31T23:59:59.999999999"),
            (i64::MAX, "2262-04-11T23:47:16.854775807"),
            (i64::MIN, "1677-09-21T00:12:43.145224192"),
        ] {
            let (second, nanosecond) = stamp.parts(time_ns);
            assert_eq!(format!("{second}.{nanosecond:09}"), text);
        }
    }
}
