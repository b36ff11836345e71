//! Copies of packets on their way to a sink, and what all of them may take.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use retroscope_alert::Alert;

use crate::{
    dump::{
        packet::PacketMeta,
        sink::{Gap, Sink},
    },
    intake::interfaces::Interface,
};

/// Bytes that a batch counts at once, at least.
const COUNTED_BYTES: usize = 8 * 1024;

/// Copies of packets. While they are there they count against the budget.
#[derive(Debug)]
pub(in crate::dump) struct Batch {
    items: Vec<Item>,
    /// Of the packets, one behind the other.
    bytes: Vec<u8>,
    /// What they count for, …
    cost: usize,
    /// … and what is counted so far: some more, so that few packets touch what threads share.
    counted: usize,
    /// More follow at once: what is here need not be seen before they are.
    pub(super) is_followed: bool,
    queued: Arc<AtomicUsize>,
    limits: Arc<Limits>,
}

#[derive(Debug)]
enum Item {
    Packet {
        meta: PacketMeta,
        bytes: usize,
        aside: bool,
    },
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
            cost: 0,
            counted: 0,
            is_followed: false,
            queued: Arc::clone(queued),
            limits: Arc::clone(limits),
        }
    }

    /// What its packets count for.
    pub(super) fn cost(&self) -> usize {
        self.cost
    }

    /// Bytes of its packets.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn interface(&mut self, id: u16, interface: &Arc<Interface>) {
        let interface = Arc::clone(interface);
        self.items.push(Item::Interface(id, interface));
    }

    pub(super) fn gap(&mut self, gap: &Gap) {
        self.items.push(Item::Gap(*gap));
    }

    /// See [`Sink::mark`].
    pub(super) fn mark(&mut self, alert: &Arc<Alert>) {
        self.items.push(Item::Mark(Arc::clone(alert)));
    }

    pub(super) fn push(&mut self, meta: &PacketMeta, data: &[u8], aside: bool) {
        self.cost += cost(data.len());
        if self.cost > self.counted {
            let more = (self.cost - self.counted).max(COUNTED_BYTES);
            self.queued.fetch_add(more, Ordering::Relaxed);
            self.limits.queued.fetch_add(more, Ordering::Relaxed);
            self.counted += more;
        }
        self.bytes.extend_from_slice(data);
        self.items.push(Item::Packet {
            meta: *meta,
            bytes: data.len(),
            aside,
        });
    }

    /// Nothing more is added: what was counted beyond its packets is not any more.
    pub(super) fn end(&mut self) {
        let surplus = self.counted - self.cost;
        self.counted = self.cost;
        self.queued.fetch_sub(surplus, Ordering::Relaxed);
        self.limits.queued.fetch_sub(surplus, Ordering::Relaxed);
    }

    pub(super) fn write(&self, sink: &mut dyn Sink) -> io::Result<()> {
        let mut rest = self.bytes.as_slice();
        for item in &self.items {
            match item {
                Item::Packet { meta, bytes, aside } => {
                    let (data, behind) = rest.split_at(*bytes);
                    rest = behind;
                    sink.packet(meta, data, *aside)?;
                }
                Item::Interface(id, interface) => sink.interface(*id, interface),
                Item::Gap(gap) => sink.gap(gap),
                Item::Mark(alert) => sink.mark(alert),
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
