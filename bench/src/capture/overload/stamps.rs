//! The accuracy of time stamps by engine and burst (survey, section 3: batching makes stamps
//! inaccurate).
//!
//! A burst is a number of packets that wait in the receive queue together until the kernel fetches
//! the packets, as with a NIC that delays its interrupts. Each packet contains the time at which
//! the sender put it into the queue. The error of a stamp is the difference of stamp and this time.

use std::{io, path::Path, thread::park_timeout, time::Duration};

use retroscope_pcapfile::CaptureReader;

use super::{ENGINES, Engine, LAG, Lab, turns};
use crate::{
    measure::{Failure, Spread},
    session::Session,
    thesis::enough_cores,
};

/// Packets of a burst.
const BURSTS: [u32; 4] = [1, 16, 64, 256];
const BURSTS_A_SECOND: u32 = 1000;
const SIZE: u32 = 60;
const PARTS: [&str; 2] = ["p50", "p99"];
/// libpcap hands over a partly filled block after a second.
const TCPDUMP_LAG: Duration = Duration::from_millis(1200);
/// Places of the destination port (9) and of the sender's time in a frame of `shim/frame_source.c`.
const PORT: std::ops::Range<usize> = 36..38;
const PAYLOAD: std::ops::Range<usize> = 42..50;

pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let mut lab = None;
    for (burst, engine) in BURSTS
        .iter()
        .flat_map(|burst| ENGINES.iter().map(move |it| (*burst, it)))
    {
        let names = PARTS.map(|part| format!("stamps/{}/{burst}/{part}", engine.name));
        if !names.iter().any(|name| session.wants(name)) {
            continue;
        }
        let lab = lab.get_or_insert_with(|| {
            enough_cores(2, false)?;
            Lab::new(&session.programs, 1, false)
        });
        let found = lab.as_ref().map_err(Clone::clone).and_then(|lab| {
            let turn = |_| lab.errors(engine, session.scale.time(0.5), burst);
            (0..turns(session)).map(turn).collect::<Result<Vec<_>, _>>()
        });
        for (at, name) in names.iter().enumerate() {
            session.row(name, None, || {
                let found = found.as_ref().map_err(Clone::clone)?;
                Spread::of(&found.iter().map(|parts| parts[at]).collect::<Vec<_>>())
            })?;
        }
    }
    Ok(())
}

impl Lab {
    /// Median and 99th percentile of the errors of stamps, in µs.
    fn errors(&self, engine: &Engine, time: Duration, burst: u32) -> Result<[f64; 2], Failure> {
        let file = self.folder.path().join("stamps");
        let name = file.display().to_string();
        let process = self.start(engine, &name)?;
        let rate = f64::from(BURSTS_A_SECOND * burst);
        let sent = self.send(SIZE, time, rate, burst)?;
        if engine.options.is_some() {
            park_timeout(LAG);
            let socket = self.folder.path().join("api").display().to_string();
            let words = [&self.retroscope, "query", "--socket", &socket, "-w", &name];
            self.veth.output(&words)?;
        } else {
            park_timeout(TCPDUMP_LAG);
        }
        process.stop()?;
        percentiles(errors(&file, sent.offset_ns)?)
    }
}

/// The differences of stamp and time of sending of the sender's packets in a file, in ns.
fn errors(file: &Path, offset_ns: i64) -> Result<Vec<u64>, Failure> {
    let failed = |error| Failure::system("reading the captured packets", error);
    let mut reader = CaptureReader::open(file).map_err(failed)?;
    let mut errors = Vec::new();
    while let Some(record) = reader.next().map_err(failed)? {
        let sent = record
            .data
            .get(PAYLOAD)
            .and_then(|bytes| bytes.try_into().ok());
        if let (Some(sent), Some([0, 9])) = (sent, record.data.get(PORT)) {
            let sent_ns = i64::from_ne_bytes(sent).saturating_add(offset_ns);
            errors.push(record.meta.time_ns.abs_diff(sent_ns));
        }
    }
    Ok(errors)
}

/// Median and 99th percentile, in µs.
///
/// # Errors
/// [`Failure::Unsound`]: `errors_ns` is empty.
fn percentiles(mut errors_ns: Vec<u64>) -> Result<[f64; 2], Failure> {
    errors_ns.sort_unstable();
    let at = |percent: usize| errors_ns.get(errors_ns.len() * percent / 100);
    let found = at(50).zip(at(99));
    let (p50, p99) = found.ok_or_else(|| Failure::Unsound("no packet was captured".to_owned()))?;
    Ok([*p50 as f64 / 1e3, *p99 as f64 / 1e3])
}

#[cfg(test)]
mod tests {
    use retroscope_pcapfile::{LinkType, PcapOptions, PcapWriter};

    use super::*;

    #[test]
    fn the_error_is_the_stamp_less_the_time_in_the_packet() {
        let mut writer = PcapWriter::new(Vec::new(), PcapOptions::new(LinkType::ETHERNET)).unwrap();
        for (port, sent_ns, stamp_ns) in [(9, 100, 5_600), (9, 300, 4_300), (8, 0, 9_000)] {
            let mut frame = [0; 60];
            frame[37] = port;
            frame[42..50].copy_from_slice(&i64::to_ne_bytes(sent_ns));
            writer.record(stamp_ns, 60, &frame).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, writer.finish().unwrap()).unwrap();
        assert_eq!(errors(&file, 5_000), Ok(vec![500, 1000]));
    }

    #[test]
    fn percentiles_are_of_all_packets() {
        assert_eq!(percentiles((0..1000).rev().collect()), Ok([0.5, 0.99]));
        assert!(matches!(percentiles(Vec::new()), Err(Failure::Unsound(_))));
    }
}
