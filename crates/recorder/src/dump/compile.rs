//! Dump filters that libpcap takes its time for, compiled on a thread of their own: other dumps go on meanwhile.
//!
//! What is filled in from a trigger packet can only be compiled then, and a list of a hundred hosts takes libpcap a tenth of a second.
//! Expressions share what was compiled of them, so the thread gives nothing back but word that it is done.

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

/// The thread `dump-compiler`, started with the first filter that needs it.
#[derive(Debug)]
pub(super) struct DumpCompiler {
    /// False from files: there everything waits in any case, and no dump runs in real time.
    is_live: bool,
    thread: Option<(mpsc::Sender<FilterCompilation>, mpsc::Receiver<u64>)>,
    /// How many link types open dumps are ready for.
    link_types: usize,
}

/// A filter to compile.
#[derive(Debug)]
struct FilterCompilation {
    /// The number of its dump.
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

    /// Takes the filter of a dump over if libpcap takes long for it, for one of these link types. The dump must wait for it then.
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
        // Where the system gives no thread, it is compiled where it is used.
        let thread = self.thread.as_ref();
        thread.is_some_and(|(work_tx, _)| work_tx.send(work).is_ok())
    }

    /// Begins with the dumps whose filters are compiled, or with all if the thread is gone: then the dumper compiles them itself. Takes
    /// the filters of open dumps over for link types that turned up since they were opened.
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
        // A dump that is being compiled is asked again when it is done.
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

    /// The filter of a dump is compiled for the link types that were known when it was handed over, and may have to be for others of
    /// `link_types`.
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

    /// The next dump whose filter is compiled. `Disconnected`: the thread is gone, and the filters it had left come no more.
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

    /// As if the thread had ended amidst its work.
    #[cfg(test)]
    pub(super) fn lose(&mut self) {
        self.thread = Some((mpsc::channel().0, mpsc::channel().1));
    }
}

fn ids<'d>(dumps: impl Iterator<Item = &'d ActiveDump>) -> Vec<u64> {
    dumps.map(|dump| dump.order.id).collect()
}

/// Starts the thread. It ends when nobody submits any more, after the filter that it is at.
fn start() -> io::Result<(mpsc::Sender<FilterCompilation>, mpsc::Receiver<u64>)> {
    let (work_tx, work) = mpsc::channel::<FilterCompilation>();
    let (done, done_rx) = mpsc::channel();
    let run = move || {
        for mut one in work {
            for link_type in one.link_types {
                // What it makes, or why not, is found where the filter is used.
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
