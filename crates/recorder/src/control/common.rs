//! What all threads of a recorder share.

use std::sync::{Arc, atomic::AtomicI64};

use retroscope_capture::clock::Clock;
use retroscope_ring::{Ring, Waker};

use crate::{
    control::{
        pins::Pins,
        progress::{AnalyzerCounters, Control, Costs, Gate},
        ring_time::RingClock,
    },
    dump::log::DumpLog,
    intake::Intake,
};

/// See the module. Each part says who writes it.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) ring: Ring,
    pub(crate) clock: RingClock,
    pub(crate) intake: Intake,
    /// What anyone may ask for, also who outlives the recorder's threads and must not keep the ring.
    pub(crate) control: Arc<Control>,
    pub(crate) gate: Gate,
    /// Offline: the highest packet time that the analyzer had seen before it moved its positions, ns. It writes it for the dumper.
    pub(crate) packet_clock: AtomicI64,
    pub(crate) counters: AnalyzerCounters,
    pub(crate) costs: Costs,
    pub(crate) log: DumpLog,
    pub(crate) pins: Pins,
}

impl Common {
    pub(crate) fn new(ring: Ring, clock: Arc<dyn Clock>, intake: Intake) -> Arc<Self> {
        Arc::new(Self {
            ring,
            clock: RingClock::new(clock),
            intake,
            control: Arc::default(),
            gate: Gate::default(),
            packet_clock: AtomicI64::new(i64::MIN),
            counters: AnalyzerCounters::default(),
            costs: Costs::default(),
            log: DumpLog::default(),
            pins: Pins::default(),
        })
    }

    /// From files: waits at the gate until the analyzer has read all and the dumper has written what it wants of it, and then lets the
    /// logs of losses merge what they hold.
    pub(crate) fn wait_for_readers(&self, analyzer: &Waker) {
        self.gate.wait(|| analyzer.wake());
        self.intake.settle();
    }

    /// Live sources, rather than files.
    pub(crate) fn is_live(&self) -> bool {
        !self.intake.offline
    }
}
