//! The dumper's end of a sink.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use retroscope_alert::Alert;

use super::{
    Pool,
    batch::{BATCH_BYTES, Batch, OffsetGuess, cost},
    work::{Body, Outcome, Shared, Work},
};
use crate::{
    dump::{
        behind::Blocks,
        encode::{Format, room_around},
        packet::PacketMeta,
        sink::{Gap, Held},
        spaced::Spaced,
    },
    intake::interfaces::Interface,
};

/// The dumper's end of a sink. Dropped, it gives up what was not written yet.
#[derive(Debug)]
pub(in crate::dump) struct SinkQueue {
    id: u64,
    pub(in crate::dump) format: Format,
    shared: Arc<Shared>,
    /// Bytes of its copies.
    queued: Arc<AtomicUsize>,
    /// Copies that were not handed over yet.
    batch: Option<Batch>,
    /// Blocks of its file, into which packets are copied where full batches come; `None`: it is not a pcapng file.
    blocks: Option<Blocks>,
    /// Where the next packet goes in the file.
    offset: OffsetGuess,
    /// Bytes of the packets handed over last, as the next ones may have, …
    last_bytes: usize,
    /// … whether they fill a batch, …
    was_full: bool,
    /// … and whether more were to follow.
    is_followed: bool,
    /// It was told that nothing comes, and nothing came since.
    is_resting: bool,
    /// The sink, where the dumper does the work itself.
    pub(super) body: Option<Body>,
    /// Why it has failed.
    pub(in crate::dump) fault: Option<Fault>,
    /// What it held when it was complete, or where it was to be.
    pub(in crate::dump) completed: Held,
    /// A test says that it has no room.
    #[cfg(test)]
    pub(in crate::dump) is_full: bool,
}

/// Why a sink failed, and what it holds all the same.
#[derive(Debug, Clone)]
pub(in crate::dump) struct Fault {
    pub(in crate::dump) error: String,
    /// As `missing` names it: [`DISK`] or [`STOPPED`].
    pub(in crate::dump) cause: &'static str,
    pub(in crate::dump) held: Held,
}

/// The file system refused what was to be written.
pub(in crate::dump) const DISK: &str = "disk";

/// The dump was not to be completed.
pub(in crate::dump) const STOPPED: &str = "stopped";

impl SinkQueue {
    /// Without a sink of its own: the pool has it.
    pub(super) fn new(
        id: u64,
        (format, blocks): (Format, &Blocks),
        held: Held,
        shared: &Arc<Shared>,
    ) -> Self {
        Self {
            id,
            format,
            blocks: (format == Format::PcapNg).then(|| blocks.clone()),
            offset: OffsetGuess::default(),
            shared: Arc::clone(shared),
            queued: Arc::default(),
            batch: None,
            last_bytes: 0,
            was_full: false,
            is_followed: false,
            is_resting: false,
            body: None,
            fault: None,
            completed: held,
            #[cfg(test)]
            is_full: false,
        }
    }

    /// What the sink holds, as far as it was told.
    pub(in crate::dump) fn held(&self) -> &Held {
        let failed = self.fault.as_ref().map(|fault| &fault.held);
        failed.unwrap_or(&self.completed)
    }

    /// Whether a packet of so many bytes may come. Who has failed takes, and forgets, anything.
    pub(in crate::dump) fn has_room(&self, bytes: usize) -> bool {
        #[cfg(test)]
        if self.is_full {
            return false;
        }
        let is_free = self.fault.is_some() || self.body.is_some();
        is_free || {
            let queued = self.queued.load(Ordering::Relaxed);
            self.shared.limits.has_room(queued, cost(bytes))
        }
    }

    /// Takes a packet, for which there is room.
    pub(in crate::dump) fn packet(&mut self, meta: &PacketMeta, data: &[u8]) {
        if let Some(body) = &mut self.body {
            let failed = body.attempt(|file| file.packet(meta, data));
            body.count_files();
            self.fault = self.fault.take().or(failed);
        } else if self.fault.is_none() {
            if (self.batch.as_ref()).is_some_and(|batch| !batch.takes(meta, data)) {
                self.hand_over(true);
            }
            if self.batch.is_none() && !meta.is_trigger {
                self.batch = self.spaced_batch();
            }
            let (before, behind) = room_around(meta, data.len());
            self.offset.packet_bytes += (before + data.len() + behind) as u64;
            let batch = self.batch();
            batch.push(meta, data);
            if batch.is_full() {
                self.hand_over(true);
            }
        }
    }

    /// As in [`DumpFile::interface`](crate::dump::file::DumpFile::interface).
    pub(in crate::dump) fn interface(&mut self, id: u16, interface: &Arc<Interface>) {
        match &mut self.body {
            Some(body) => body.file.interface(id, interface),
            None => self.batch_of_others().interface(id, interface),
        }
    }

    /// Something is missing here.
    pub(in crate::dump) fn gap(&mut self, gap: &Gap) {
        match &mut self.body {
            Some(body) => body.file.gap(gap),
            None => self.batch_of_others().gap(gap),
        }
    }

    /// See [`DumpFile::mark`](crate::dump::file::DumpFile::mark).
    pub(in crate::dump) fn mark(&mut self, alert: &Arc<Alert>) {
        match &mut self.body {
            Some(body) => body.file.mark(alert),
            None => self.batch_of_others().mark(alert),
        }
    }

    /// Nothing came for a while: the sink may give back what it keeps for more.
    pub(in crate::dump) fn rest(&mut self) {
        if self.body.is_none() && self.batch.is_none() && !self.is_resting {
            self.batch();
            self.hand_over(false);
            self.is_resting = true;
        }
    }

    /// What came is to be seen soon.
    pub(in crate::dump) fn flush(&mut self) {
        if let Some(body) = &mut self.body {
            let failed = body.attempt(|file| file.flush());
            body.count_files();
            self.fault = self.fault.take().or(failed);
        } else {
            if self.is_followed {
                self.batch();
            }
            self.hand_over(false);
        }
    }

    /// Hands over what was copied.
    fn hand_over(&mut self, is_followed: bool) {
        if let Some(mut batch) = self.batch.take() {
            (batch.is_followed, self.is_followed) = (is_followed, is_followed);
            self.is_resting = false;
            self.last_bytes = batch.bytes();
            self.was_full = batch.cost() >= BATCH_BYTES;
            batch.end();
            self.shared.submit(self.id, Work::Packets(batch));
        }
    }

    /// Something to do after all that came before.
    pub(in crate::dump) fn submit(&mut self, work: Work, pool: &mut Pool) {
        self.hand_over(true);
        let Some(body) = &mut self.body else {
            self.shared.submit(self.id, work);
            return;
        };
        match body.perform(work, true) {
            None => {}
            Some(Outcome::Failed(fault)) => self.fault = Some(fault),
            // The pool holds the other end.
            Some(outcome) => _ = pool.news_tx.send((self.id, outcome)),
        }
    }

    fn batch(&mut self) -> &mut Batch {
        let bytes = self.last_bytes.min(BATCH_BYTES);
        let new = || Batch::new(&self.queued, &self.shared.limits, bytes);
        self.batch.get_or_insert_with(new)
    }

    /// For what is no packet.
    fn batch_of_others(&mut self) -> &mut Batch {
        if self
            .batch
            .as_ref()
            .is_some_and(|batch| !batch.takes_others())
        {
            self.hand_over(true);
        }
        self.batch()
    }

    /// One of packets that lie in a block of the file, where full batches come.
    fn spaced_batch(&self) -> Option<Batch> {
        let blocks = self.blocks.as_ref().filter(|_| self.was_full)?;
        let spaced = Spaced::new(blocks.lend(self.offset.bytes())?);
        let batch = Batch::new(&self.queued, &self.shared.limits, 0);
        Some(batch.with_spaced(spaced, self.offset.clone()))
    }
}

impl Drop for SinkQueue {
    fn drop(&mut self) {
        if self.body.is_none() {
            self.shared.submit(self.id, Work::Leave);
        }
    }
}
