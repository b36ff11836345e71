//! Inserters that are slowed down, on 1 to 4 receive queues of a link of 40 Gbit/s (thesis,
//! figure 7.3).
//!
//! The generator stands in for the link. A packet takes at least [`PACKET_NS`] of its inserter's
//! time: the inserter spins for what is left of this time. So one inserter stores at most 46 % of
//! the line rate, and three are needed, as with the thesis's cores of 1.2 GHz. The rows show how
//! inserters scale. Packets that a NIC would drop are not sent.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use retroscope_capture::{
    Burst, InterfaceInfo, Offer, Probed, Queue, QueueStatus, Source, SourceError, SourceEvent,
    SourceStatistics,
};
use retroscope_generate::{GeneratorConfig, GeneratorSource, Rate};
use retroscope_recorder::{SystemClock, insert_only};

use crate::{
    measure::{Entrant, Failure, check_count},
    session::Session,
    thesis::enough_cores,
};

/// Bytes of a frame without its check sequence, as in the thesis, and of a frame on the wire: with
/// check sequence, preamble and gap.
const FRAME_BYTES: u16 = 252;
const WIRE_BYTES: f64 = 276.0;
/// Bits a second of the link.
const LINK: f64 = 40e9;
/// Least time of a packet, ns. Chosen so that three inserters are needed.
const PACKET_NS: u64 = 120;
/// The most receive queues, each with an inserter.
const QUEUES_MAX: usize = 4;

/// A source whose queues are slow.
#[derive(Debug)]
struct SlowedSource(GeneratorSource);

#[derive(Debug)]
struct SlowedQueue {
    queue: Box<dyn Queue>,
    /// The end of the time of the lent packets.
    until: Option<Instant>,
}

/// The rows by number of receive queues: stored Gbit/s on the wire.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let entrants = (1..=QUEUES_MAX).map(|queues| {
        Entrant::new(format!("rx-queues/slowed/{queues}q"), move || {
            enough_cores(queues, false)?;
            stored(session, queues)
        })
    });
    session.measure("slowed inserters, Gbit/s", entrants.collect())
}

/// Gbit/s on the wire that the inserters of this number of queues store.
fn stored(session: &Session, queues: usize) -> Result<f64, Failure> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a positive number of millions"
    )]
    let line_rate = (LINK / 8.0 / WIRE_BYTES) as u64;
    let generator = GeneratorConfig {
        size: FRAME_BYTES,
        rate: Some(Rate::FramesPerSecond(line_rate)),
        ..GeneratorConfig::default()
    };
    let source = SlowedSource(GeneratorSource::new("generate", generator));
    let (bytes, time) = (session.scale.ring_bytes, session.scale.time(0.25));
    let sources: Vec<Box<dyn Source>> = vec![Box::new(source)];
    let inserted = insert_only(
        sources,
        queues,
        bytes,
        false,
        Some(time),
        Arc::new(SystemClock),
    );
    let inserted = inserted.map_err(|error| Failure::system("starting inserters", error))?;
    let source = &inserted.sources[0];
    check_count(source.received.unwrap_or_default(), source.stored)?;
    let seconds = inserted.elapsed.as_secs_f64();
    Ok(source.stored as f64 * WIRE_BYTES * 8e-9 / seconds)
}

impl Source for SlowedSource {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn probe(self: Box<Self>, queues: usize) -> Result<Box<dyn Probed>, SourceError> {
        let opened = Box::new(self.0).probe(queues)?.open(&Offer::default())?;
        let slowed = |queue| Box::new(SlowedQueue { queue, until: None }) as Box<dyn Queue>;
        let slowed: Vec<_> = opened.into_iter().map(slowed).collect();
        Ok(Box::new(slowed))
    }
}

impl Queue for SlowedQueue {
    fn interfaces(&self) -> &[InterfaceInfo] {
        self.queue.interfaces()
    }

    fn next(&mut self, wait: Duration) -> Result<QueueStatus, SourceError> {
        while self.until.is_some_and(|until| Instant::now() < until) {
            std::hint::spin_loop();
        }
        // The time of the packets begins when the inserter asks for packets, so it includes the
        // work of the generator and the copy into the ring.
        let asked = Instant::now();
        let status = self.queue.next(wait)?;
        let packets = self.queue.burst().frames.len() as u64;
        self.until = Some(asked + Duration::from_nanos(packets * PACKET_NS));
        Ok(status)
    }

    fn burst(&self) -> Burst<'_> {
        self.queue.burst()
    }

    fn watermark(&self) -> Option<i64> {
        self.queue.watermark()
    }

    fn event(&mut self) -> Option<SourceEvent> {
        self.queue.event()
    }

    fn statistics(&mut self) -> SourceStatistics {
        self.queue.statistics()
    }

    fn stop(&mut self) {
        self.queue.stop();
    }
}
