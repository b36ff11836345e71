//! Inserts packets into a ring, peeks at every packet, and dumps the packets around a trigger.
//!
//! `cargo run -p retroscope-ring --example insert_peek_dump DUMP.pcap [RING_FILE]`
//!
//! One thread inserts a million UDP packets, 1 µs of packet time apart, into a ring that is too
//! small for all of these packets. The main thread reserves the time range around the first packet
//! to port 9, and later writes the packets of this range to a capture file. With `RING_FILE` the
//! ring is in a file, which stays for the readers in C and Python (`readers/`).
#![expect(clippy::print_stdout, reason = "reports what was dumped")]

use std::{
    error::Error,
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    thread,
    time::Duration,
};

use retroscope_ring::{
    Backing, GroupKind, InterfaceEntry, Packet, Producer, Reader, Record, Ring, RingConfig,
};

const PACKETS: u64 = 1_000_000;
/// Number of the trigger packet.
const TRIGGER: u64 = 900_000;
/// Destination port of the trigger packet (discard, RFC 863).
const TRIGGER_PORT: u16 = 9;
/// Packet time of packet 0, ns since the UNIX epoch.
const START_NS: i64 = 1_700_000_000_000_000_000;
/// Packet time between two packets, ns.
const STEP_NS: usize = 1_000;
/// Length of the dump's window before the trigger, and after the trigger (`AFTER_NS`), ns.
const BEFORE_NS: i64 = 100_000_000;
const AFTER_NS: i64 = 50_000_000;

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) peeked: u64,
    pub(crate) overwritten: u64,
    pub(crate) dumped: u64,
}

#[cfg_attr(test, expect(dead_code, reason = "a test calls `run`"))]
fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (dump, backing) = match arguments.as_slice() {
        [dump] => (dump, Backing::Anonymous),
        [dump, ring] => (dump, Backing::File(ring.into())),
        _ => return Err("usage: insert_peek_dump DUMP.pcap [RING_FILE]".into()),
    };
    let outcome = run(Path::new(dump), backing)?;
    let Outcome {
        peeked,
        overwritten,
        dumped,
    } = outcome;
    println!("{peeked} packets peeked at, {overwritten} overwritten, {dumped} in {dump}");
    Ok(())
}

pub(crate) fn run(dump: &Path, backing: Backing) -> Result<Outcome, Failure> {
    let config = RingConfig {
        backing,
        created_ns: START_NS,
        ..RingConfig::new(64 << 20, 1, 1)
    };
    let ring = Ring::new(&config, None)?;
    ring.add_interface(InterfaceEntry {
        name: "example0".to_owned(),
        link_type: 1, // LINKTYPE_ETHERNET
        snaplen: 0,
        time_domain: 0,
        clock: 0,
    })?;
    // `Gating`: the inserter waits rather than overwrite a bucket that this reader has not read.
    let reader = ring.group(GroupKind::Gating)?;
    let producer = ring.producer()?;
    let mut outcome = thread::scope(|scope| {
        let inserter = scope.spawn(move || insert(producer));
        let outcome = peek(&ring, reader, dump)?;
        inserter.join().map_err(|_| "the inserter panicked")??;
        Ok::<_, Failure>(outcome)
    })?;
    outcome.overwritten = ring.statistics().evicted_packets;
    Ok(outcome)
}

fn insert(mut producer: Producer) -> Result<(), Failure> {
    for (number, time_ns) in (0..PACKETS).zip((START_NS..).step_by(STEP_NS)) {
        let port = if number == TRIGGER {
            TRIGGER_PORT
        } else {
            5_000
        };
        producer.store(&Record::whole(time_ns, 0, &frame(number, port)))?;
    }
    producer.publish();
    Ok(())
}

/// A UDP packet over IPv4 and Ethernet, without checksums. The payload begins with the number.
fn frame(number: u64, port: u16) -> [u8; 60] {
    let mut frame = [0; 60];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14..34].copy_from_slice(&[
        0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2,
    ]);
    frame[34..36].copy_from_slice(&40_000_u16.to_be_bytes());
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    frame[38..40].copy_from_slice(&26_u16.to_be_bytes());
    frame[42..50].copy_from_slice(&number.to_be_bytes());
    frame
}

fn peek(ring: &Ring, mut reader: Reader, dump: &Path) -> Result<Outcome, Failure> {
    let mut outcome = Outcome::default();
    let mut window = None;
    while outcome.peeked < PACKETS {
        let Some(batch) = reader.next() else {
            reader.wait(Duration::from_secs(1));
            continue;
        };
        let mut last_ns = i64::MIN;
        for packet in batch.iter() {
            outcome.peeked += 1;
            last_ns = packet.time_ns;
            if is_trigger(&packet) && window.is_none() {
                let (from_ns, to_ns) = (packet.time_ns - BEFORE_NS, packet.time_ns + AFTER_NS);
                // If the ring can overwrite no other bucket, it overwrites reserved buckets too.
                window = Some((ring.reserve(from_ns, to_ns), from_ns, to_ns));
            }
        }
        if let Some((reservation, from_ns, to_ns)) = &window
            && outcome.dumped == 0
            && last_ns > *to_ns
        {
            outcome.dumped = write_window(ring, reservation, *from_ns..=*to_ns, dump)?;
        }
    }
    Ok(outcome)
}

fn is_trigger(packet: &Packet<'_>) -> bool {
    packet.data.get(36..38) == Some(&TRIGGER_PORT.to_be_bytes())
}

/// Returns the number of packets written.
fn write_window(
    ring: &Ring,
    reservation: &retroscope_ring::Reservation,
    window_ns: std::ops::RangeInclusive<i64>,
    dump: &Path,
) -> Result<u64, Failure> {
    let mut out = BufWriter::new(File::create(dump)?);
    // The header of a pcap file with stamps in ns: version 2.4, snap length 256 KiB, Ethernet.
    for word in [0xa1b2_3c4d_u32, 2 | 4 << 16, 0, 0, 256 << 10, 1] {
        out.write_all(&word.to_ne_bytes())?;
    }
    let (mut buckets, mut written) = (Vec::new(), 0);
    reservation.buckets(&mut buckets);
    for bucket in buckets {
        // The ring never overwrites a held bucket, even if the reservation has fallen.
        if let Some(view) = ring.hold(bucket.bucket) {
            for packet in view.iter_from(0) {
                if window_ns.contains(&packet.time_ns) {
                    write_packet(&mut out, &packet)?;
                    written += 1;
                }
            }
        }
        reservation.give_back(bucket.bucket);
    }
    out.flush()?;
    Ok(written)
}

fn write_packet(out: &mut impl Write, packet: &Packet<'_>) -> io::Result<()> {
    let seconds = packet.time_ns.div_euclid(1_000_000_000);
    let ns = packet.time_ns.rem_euclid(1_000_000_000);
    let lengths = [packet.data.len() as u64, u64::from(packet.wire_len)];
    for number in [seconds.cast_unsigned(), ns.cast_unsigned()]
        .into_iter()
        .chain(lengths)
    {
        let word = u32::try_from(number).map_err(io::Error::other)?;
        out.write_all(&word.to_ne_bytes())?;
    }
    out.write_all(packet.data)
}
