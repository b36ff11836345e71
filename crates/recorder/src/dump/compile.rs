//! Live: compiles slow dump filters on a separate thread, so that other dumps go on meanwhile.
//!
//! A filter with text from a trigger packet can be compiled only after the trigger, and libpcap
//! takes 60 ms for a list of a hundred hosts. Expressions share their compiled programs, so the
//! thread returns only the number of a dump.

use std::{
    io,
    sync::mpsc::{self, TryRecvError},
    thread::Builder,
};

use retroscope_filter::{Filter, FilterMode};
use retroscope_packet::LinkType;

use super::{active::ActiveDump, dumps::Dumps, order::DumpOrder, scan::Scanner};
use crate::{
    analysis::prepared::context, control::unprivileged::without_capabilities,
    intake::interfaces::InterfaceCache,
};

/// The thread `dump-compiler`, which starts with the first slow filter.
#[derive(Debug)]
pub(super) struct DumpCompiler {
    /// False: the dumper compiles all filters, because from files a delay loses no packets.
    is_live: bool,
    thread: Option<(mpsc::Sender<FilterCompilation>, mpsc::Receiver<u64>)>,
    /// Number of link types that were known at the last check of the filters of open dumps.
    link_types: usize,
}

#[derive(Debug)]
struct FilterCompilation {
    id: u64,
    filter: Filter,
    link_types: Vec<LinkType>,
}

impl DumpCompiler {
    pub(super) fn new(is_live: bool) -> Self {
        Self {
            is_live,
            thread: None,
            link_types: 0,
        }
    }

    /// Live: gives the dump's filter to the thread if it is slow to compile for one of these link
    /// types. Returns whether the dump must wait.
    pub(super) fn hand_over(
        &mut self,
        order: &DumpOrder,
        scanner: &Scanner,
        link_types: &[LinkType],
    ) -> bool {
        let Some(filter) = order.predicate.filter().filter(|_| self.is_live) else {
            return false;
        };
        let link_types = scanner.rules.slow_link_types(filter, link_types);
        if link_types.is_empty() {
            return false;
        }
        if self.thread.is_none() {
            self.thread = start().ok();
        }
        let work = FilterCompilation {
            id: order.id,
            filter: filter.clone(),
            link_types,
        };
        let thread = self.thread.as_ref();
        thread.is_some_and(|(work_tx, _)| work_tx.send(work).is_ok())
    }

    /// Starts the dumps whose filters are compiled; if the thread is gone, all waiting dumps. Gives
    /// filters of open dumps to the thread if they are slow to compile for new link types.
    pub(super) fn take_up(
        &mut self,
        dumps: &mut Dumps,
        scanner: &mut Scanner,
        names: &mut InterfaceCache,
    ) {
        let link_types = names.link_types();
        loop {
            match self.take() {
                Ok(id) => self.begin(id, dumps, scanner, link_types),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    let is_compiling = |dump: &&ActiveDump| dump.is_compiling;
                    for id in ids(dumps.iter().filter(is_compiling)) {
                        self.begin(id, dumps, scanner, &[]);
                    }
                }
            }
        }
        let more = link_types.get(self.link_types..).unwrap_or_default();
        self.link_types = link_types.len();
        if more.is_empty() {
            return;
        }
        let mut taken_over = Vec::new();
        for id in ids(dumps.iter().filter(|dump| !dump.is_compiling)) {
            let is_taken = dumps.change(id, |dump| {
                dump.is_compiling = self.hand_over(&dump.order, scanner, more);
                dump.is_compiling
            });
            if is_taken == Some(true) {
                scanner.rules.remove(id);
                taken_over.push(id);
            }
        }
        dumps.wait_for_filters(taken_over);
    }

    /// Starts a dump that waited for its filter. If the filter is slow for another one of
    /// `link_types`, the dump waits again.
    fn begin(
        &mut self,
        id: u64,
        dumps: &mut Dumps,
        scanner: &mut Scanner,
        link_types: &[LinkType],
    ) {
        dumps.change(id, |dump| {
            dump.is_compiling = self.hand_over(&dump.order, scanner, link_types);
            if !dump.is_compiling {
                scanner.add(&mut dump.order);
            }
        });
    }

    /// The next dump whose filter is compiled. `Disconnected`: the thread is gone.
    fn take(&mut self) -> Result<u64, TryRecvError> {
        let Some((_, done)) = &self.thread else {
            return Err(TryRecvError::Empty);
        };
        let next = done.try_recv();
        if next == Err(TryRecvError::Disconnected) {
            self.thread = None;
        }
        next
    }

    #[cfg(test)]
    pub(super) fn lose(&mut self) {
        self.thread = Some((mpsc::channel().0, mpsc::channel().1));
    }
}

fn ids<'d>(dumps: impl Iterator<Item = &'d ActiveDump>) -> Vec<u64> {
    dumps.map(|dump| dump.order.id).collect()
}

/// Starts the thread, which ends after the dumper drops its ends of the channels.
fn start() -> io::Result<(mpsc::Sender<FilterCompilation>, mpsc::Receiver<u64>)> {
    let (work_tx, work) = mpsc::channel::<FilterCompilation>();
    let (done, done_rx) = mpsc::channel();
    let run = move || {
        for mut one in work {
            for link_type in one.link_types {
                // The program, or the error, is found where the filter is used.
                let _ = one.filter.prepare(context(link_type, FilterMode::Live));
            }
            if done.send(one.id).is_err() {
                return;
            }
        }
    };
    without_capabilities(|| Builder::new().name("dump-compiler".to_owned()).spawn(run))??;
    Ok((work_tx, done_rx))
}
