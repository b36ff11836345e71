//! Dump filters that libpcap takes its time for, compiled on a thread of their own: other dumps go on meanwhile.
//!
//! What is filled in from a trigger packet can only be compiled then, and a list of a hundred hosts takes libpcap a tenth of a second.
//! Expressions share what was compiled of them, so the thread gives nothing back but word that it is done.

use std::{io, sync::mpsc, thread::Builder};

use retroscope_filter::{Filter, Mode};
use retroscope_packet::LinkType;

use super::{order::DumpOrder, scan::Scanner};
use crate::{prepared::context, unprivileged::without_capabilities};

/// The thread `dump-compiler`, started with the first filter that needs it.
#[derive(Debug)]
pub(super) struct DumpCompiler {
    /// From files everything waits in any case, and no dump runs in real time.
    is_live: bool,
    thread: Option<(mpsc::Sender<Work>, mpsc::Receiver<u64>)>,
}

/// A filter to compile.
#[derive(Debug)]
struct Work {
    /// Of its dump.
    id: u64,
    filter: Filter,
    link_types: Vec<LinkType>,
}

impl DumpCompiler {
    pub(super) fn new(is_live: bool) -> Self {
        Self {
            is_live,
            thread: None,
        }
    }

    /// Takes the filter of a new dump over if libpcap takes long for it, for one of the link types that there are. The dump must
    /// wait for it then.
    pub(super) fn hand_over(
        &mut self,
        order: &DumpOrder,
        scanner: &Scanner,
        link_types: &[LinkType],
    ) -> bool {
        let Some(filter) = order.predicate.filter().filter(|_| self.is_live) else {
            return false;
        };
        let link_types = scanner.slow_link_types(filter, link_types);
        if link_types.is_empty() {
            return false;
        }
        if self.thread.is_none() {
            self.thread = start().ok();
        }
        let work = Work {
            id: order.id,
            filter: filter.clone(),
            link_types,
        };
        // Where the system gives no thread, it is compiled where it is used.
        let thread = self.thread.as_ref();
        thread.is_some_and(|(work_tx, _)| work_tx.send(work).is_ok())
    }

    /// The next dump whose filter is compiled.
    pub(super) fn take(&self) -> Option<u64> {
        self.thread.as_ref()?.1.try_recv().ok()
    }
}

/// Starts the thread. It ends when nobody submits any more, behind the filter that it is at.
fn start() -> io::Result<(mpsc::Sender<Work>, mpsc::Receiver<u64>)> {
    let (work_tx, work) = mpsc::channel::<Work>();
    let (done, done_rx) = mpsc::channel();
    let run = move || {
        for mut one in work {
            for link_type in one.link_types {
                // What it makes, or why not, is found where the filter is used.
                let _ = one.filter.prepare(context(link_type, Mode::Live));
            }
            if done.send(one.id).is_err() {
                return;
            }
        }
    };
    without_capabilities(|| Builder::new().name("dump-compiler".to_owned()).spawn(run))??;
    Ok((work_tx, done_rx))
}
