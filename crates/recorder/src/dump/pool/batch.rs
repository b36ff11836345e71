//! Copies of packets on their way to a sink, and what all of them may take.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use retroscope_alert::Alert;

use crate::{
    dump::{file::DumpFile, packet::PacketMeta, sink::Gap, spaced::Spaced},
    intake::interfaces::Interface,
};

/// Bytes of copies that are handed over together, at least; before the end of a round.
pub(super) const BATCH_BYTES: usize = 256 * 1024;
/// Bytes that a batch counts at once, at least.
const COUNTED_BYTES: usize = 8 * 1024;

/// Copies of packets. While they are there they count against the budget.
#[derive(Debug)]
pub(in crate::dump) struct Batch {
    items: Vec<Item>,
    /// Of the packets, one behind the other.
    bytes: Vec<u8>,
    /// In the place of both, packets that lie in a block of a file, and where in it they should begin.
    spaced: Option<(Spaced, OffsetGuess)>,
    /// What they count for, …
    cost: usize,
    /// … and what is counted so far: some more, so that few packets touch what threads share.
    counted: usize,
    /// More follow at once: what is here need not be seen before they are.
    pub(super) is_followed: bool,
    queued: Arc<AtomicUsize>,
    limits: Arc<Limits>,
}

/// Where in a file packets are to begin: behind so many bytes of packets, and others, which only who writes it knows.
#[derive(Debug, Clone, Default)]
pub(super) struct OffsetGuess {
    pub(super) packet_bytes: u64,
    /// Of headers, interfaces and comments; modulo 2^64.
    others: Arc<AtomicU64>,
}

impl OffsetGuess {
    /// Bytes before it, as far as they are known.
    pub(super) fn bytes(&self) -> u64 {
        // A number that stands alone: one that is out of date costs a copy.
        let others = self.others.load(Ordering::Relaxed);
        self.packet_bytes.wrapping_add(others)
    }

    /// It turned out to be behind so many bytes.
    fn learn(&self, offset: u64) {
        let others = offset.wrapping_sub(self.packet_bytes);
        self.others.store(others, Ordering::Relaxed);
    }
}

#[derive(Debug)]
enum Item {
    Packet { meta: PacketMeta, bytes: usize },
    Interface(u16, Arc<Interface>),
    Gap(Gap),
    Mark(Arc<Alert>),
}

/// What all sinks of a pool share and count. Each number stands alone: only the dumper adds copies, and asks before.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) budget_bytes: usize,
    /// Descriptors that may stay open between two pieces of work.
    pub(super) files_kept: usize,
    pub(super) queued: Arc<AtomicUsize>,
    pub(super) files: AtomicUsize,
}

impl Limits {
    /// Whether a queue of so many bytes may grow by so many: to half of what is left. One packet may always come that there is
    /// space for at all.
    pub(super) fn has_room(&self, queued: usize, more: usize) -> bool {
        let used = self.queued.load(Ordering::Relaxed);
        let left = self.budget_bytes.saturating_sub(used);
        more <= left && (queued == 0 || queued + more <= left / 2)
    }
}

impl Batch {
    /// `bytes`: of the packets that it will probably have.
    pub(super) fn new(queued: &Arc<AtomicUsize>, limits: &Arc<Limits>, bytes: usize) -> Self {
        Self {
            items: Vec::new(),
            bytes: Vec::with_capacity(bytes),
            spaced: None,
            cost: 0,
            counted: 0,
            is_followed: false,
            queued: Arc::clone(queued),
            limits: Arc::clone(limits),
        }
    }

    /// For packets that lie in a block of a file, and nothing else.
    pub(super) fn with_spaced(mut self, spaced: Spaced, offset: OffsetGuess) -> Self {
        self.spaced = Some((spaced, offset));
        self
    }

    /// Whether a packet can come next.
    pub(super) fn takes(&self, meta: &PacketMeta, data: &[u8]) -> bool {
        let spaced = self.spaced.as_ref();
        spaced.is_none_or(|(spaced, _)| spaced.takes(meta, data))
    }

    /// Whether something other than a packet can.
    pub(super) fn takes_others(&self) -> bool {
        self.spaced.is_none()
    }

    /// What its packets count for.
    pub(super) fn cost(&self) -> usize {
        self.cost
    }

    /// Whether it is to be handed over, however much follows.
    pub(super) fn is_full(&self) -> bool {
        match &self.spaced {
            Some((spaced, _)) => spaced.is_full(),
            None => self.cost >= BATCH_BYTES,
        }
    }

    /// Bytes of its packets.
    pub(super) fn bytes(&self) -> usize {
        let spaced = self.spaced.as_ref();
        spaced.map_or(self.bytes.len(), |(spaced, _)| spaced.bytes().len())
    }

    pub(super) fn interface(&mut self, id: u16, interface: &Arc<Interface>) {
        let interface = Arc::clone(interface);
        self.items.push(Item::Interface(id, interface));
    }

    pub(super) fn gap(&mut self, gap: &Gap) {
        self.items.push(Item::Gap(*gap));
    }

    /// See [`DumpFile::mark`].
    pub(super) fn mark(&mut self, alert: &Arc<Alert>) {
        self.items.push(Item::Mark(Arc::clone(alert)));
    }

    pub(super) fn push(&mut self, meta: &PacketMeta, data: &[u8]) {
        self.cost += cost(data.len());
        if self.cost > self.counted {
            let more = (self.cost - self.counted).max(COUNTED_BYTES);
            self.queued.fetch_add(more, Ordering::Relaxed);
            self.limits.queued.fetch_add(more, Ordering::Relaxed);
            self.counted += more;
        }
        if let Some((spaced, _)) = &mut self.spaced {
            spaced.push(meta, data);
            return;
        }
        self.bytes.extend_from_slice(data);
        self.items.push(Item::Packet {
            meta: *meta,
            bytes: data.len(),
        });
    }

    /// Nothing more is added: what was counted beyond its packets is not any more.
    pub(super) fn end(&mut self) {
        let surplus = self.counted - self.cost;
        self.counted = self.cost;
        self.queued.fetch_sub(surplus, Ordering::Relaxed);
        self.limits.queued.fetch_sub(surplus, Ordering::Relaxed);
    }

    pub(super) fn write(&mut self, file: &mut DumpFile) -> io::Result<()> {
        if let Some((spaced, offset)) = self.spaced.take() {
            offset.learn(file.spaced(spaced)?);
        }
        let mut rest = self.bytes.as_slice();
        for item in &self.items {
            match item {
                Item::Packet { meta, bytes } => {
                    let (data, behind) = rest.split_at(*bytes);
                    rest = behind;
                    file.packet(meta, data)?;
                }
                Item::Interface(id, interface) => file.interface(*id, interface),
                Item::Gap(gap) => file.gap(gap),
                Item::Mark(alert) => file.mark(alert),
            }
        }
        Ok(())
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.queued.fetch_sub(self.counted, Ordering::Relaxed);
        self.limits
            .queued
            .fetch_sub(self.counted, Ordering::Relaxed);
    }
}

/// What a packet of so many bytes counts for.
pub(super) fn cost(bytes: usize) -> usize {
    bytes + size_of::<Item>()
}
