//! A dump that reads no more packets, while its sink finishes the files.

use std::collections::BTreeMap;

use super::{
    dump_alerts::DumpAlerts,
    output::WrittenTotals,
    pool::{DISK, STOPPED, SinkFault, SinkOutcome, SinkQueue, SinkWork},
    report::{DumpReport, Missing, PROGRAM, file_name},
    sidecar::{Origin, Sidecar, SidecarFacts, SidecarInterface},
};
use crate::intake::interfaces::InterfaceCache;

/// Note about a pcapng file that Wireshark reads and tcpdump refuses.
const SEVERAL_LINK_TYPES: &str = "several link types in one file: libpcap, and so tcpdump, will not read it (--format pcap splits it)";

/// A dump whose sink finishes its files, or only writes what it was given.
#[derive(Debug)]
pub(super) struct DumpEnding {
    pub(super) rule_number: usize,
    pub(super) stage: Stage,
    /// The report, without the parts that depend on the sink.
    pub(super) draft: DumpReport,
    /// Packets and bytes that the dump gave to the sink.
    pub(super) taken: WrittenTotals,
    pub(super) per_interface: BTreeMap<u16, u64>,
    /// The window, ns of ring time.
    pub(super) window: (i64, i64),
    pub(super) sink: SinkQueue,
    pub(super) completion: Completion,
    pub(super) facts: SidecarFacts,
    pub(super) alerted: DumpAlerts,
}

#[derive(Debug, Default)]
pub(super) struct Completion {
    /// The dump's sidecar could not be written.
    pub(super) lacks_sidecar: bool,
    /// Creation time for the sidecar, RFC 3339. `None` in reproducible runs.
    pub(super) created: Option<String>,
    /// The dump is not compressed, although compression was asked for.
    pub(super) stays_plain: bool,
    /// The dump was already deleted when its sidecar was to be replaced.
    pub(super) is_gone: bool,
}

/// The work that the sink does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Complete the files.
    Finishing,
    /// Write what the sink was given, and no more: nobody completes the dump.
    Stopping,
    /// Write the sidecar.
    WritingSidecar,
    /// Compress the complete files.
    Compressing,
    /// Replace the plain files by the compressed files, and the sidecar by a new sidecar.
    Replacing,
    /// Try again to write the sidecar.
    RetryingSidecar,
}

impl DumpEnding {
    /// Gives the sink work. Returns false if the sink has failed and cannot do the work.
    pub(super) fn submit(&mut self, stage: Stage, work: SinkWork) -> bool {
        self.stage = stage;
        let can_do = self.sink.fault.is_none() || matches!(work, SinkWork::WriteSidecar(_));
        if can_do {
            self.sink.submit(work);
        }
        can_do
    }

    /// Handles the result of the sink's work. Returns messages for the user. `why`: the reason why
    /// dumps are not completed, if the recording was abandoned.
    pub(super) fn hear(&mut self, outcome: SinkOutcome, why: &str) -> Vec<String> {
        let sink = &mut self.sink;
        let mut notices = Vec::new();
        match outcome {
            SinkOutcome::Failed(fault)
            | SinkOutcome::Done {
                failed: Some(fault),
                ..
            } => {
                sink.fault.get_or_insert(fault);
            }
            SinkOutcome::Done { held, .. } if self.stage == Stage::Stopping => {
                sink.fault = Some(SinkFault {
                    error: why.to_owned(),
                    cause: STOPPED,
                    held,
                });
            }
            SinkOutcome::Done { held, .. } => sink.completed = held,
            SinkOutcome::SidecarWritten { sidecar, held } => {
                sink.completed = held;
                let name = sink.held().locations.first();
                let name = name.map_or_else(String::new, |path| path.display().to_string());
                let is_replacing = self.stage == Stage::Replacing;
                self.completion.is_gone |= is_replacing && matches!(sidecar, Ok(false));
                if is_replacing && self.draft.sidecar {
                    // If the new sidecar cannot be written, the plain files and the old sidecar
                    // stay.
                    return notices;
                }
                let lacked =
                    std::mem::replace(&mut self.completion.lacks_sidecar, sidecar.is_err());
                match &sidecar {
                    Err(error) if !lacked => notices.push(format!("{name}: no sidecar: {error}")),
                    Ok(true) if lacked => {
                        notices.push(format!("{name}: its sidecar is written now"));
                    }
                    _ => {}
                }
                let is_written = matches!(sidecar, Ok(true));
                self.draft.sidecar = is_written && (self.draft.sidecar || is_replacing);
            }
        }
        notices
    }

    pub(super) fn is_compressed(&self) -> bool {
        !self.sink.held().replaced.is_empty()
    }

    pub(super) fn note_link_types(&mut self, names: &mut InterfaceCache) {
        let held = self.sink.held();
        let described = held.interfaces.iter();
        let mut link_types = described.filter_map(|id| names.interface(*id).map(|it| it.link_type));
        let first = link_types.next();
        let is_one_file = self.sink.fault.is_none() && held.locations.len() == 1;
        if is_one_file && link_types.any(|link_type| Some(link_type) != first) {
            self.draft.notes.push(SEVERAL_LINK_TYPES.to_owned());
        }
    }

    pub(super) fn report(&self) -> DumpReport {
        let mut report = self.draft.clone();
        let (fault, held) = (self.sink.fault.as_ref(), self.sink.held());
        let written = fault.map_or(self.taken, |fault| fault.held.safe);
        report.packets = written.packets;
        report.bytes = written.bytes;
        report.span_ns = written.first_ns.zip(written.last_ns);
        let missing = |cause, (from_ns, to_ns): (i64, i64), packets| {
            let stamp = |ring_ns: i64| ring_ns.saturating_add(report.offset_ns);
            Missing::new(cause, stamp(from_ns), stamp(to_ns), packets)
        };
        let restamped = (written.restamped > 0)
            .then(|| missing("restamped", self.window, Some(written.restamped)));
        let failed = fault.map(|fault| {
            let safe = fault.held.safe;
            let first_ns = safe.last_ns.or(self.taken.first_ns);
            let first_ns = first_ns.unwrap_or(self.window.0);
            let last_ns = self.taken.last_ns.map_or(first_ns, |ns| ns.max(first_ns));
            let lost = self.taken.packets.saturating_sub(safe.packets);
            let packets = (fault.cause == DISK).then_some(lost);
            missing(fault.cause, (first_ns, last_ns), packets)
        });
        report.missing.extend(restamped);
        report.missing.extend(failed);
        report.error = fault.map(|fault| fault.error.clone());
        report.id.clone_from(&held.id);
        report.files.clone_from(&held.files);
        report.replaced.clone_from(&held.replaced);
        report.notes.extend(held.note.clone());
        report.locations.clone_from(&held.locations);
        let mut files = held.locations.iter().cloned();
        report.file = files.next().unwrap_or_default();
        report.more_files = files.collect();
        report.judge();
        report
    }

    /// The sidecar of the dump. It names the files without a directory, so the names stay true when
    /// the directory moves.
    pub(super) fn sidecar(&self, names: &mut InterfaceCache, origin: &Origin) -> Sidecar {
        let mut report = self.report();
        let paths = report.locations.iter_mut().chain(&mut report.more_files);
        for path in paths.chain([&mut report.file]) {
            *path = file_name(path);
        }
        let described = self.sink.held().interfaces.iter();
        let describe = |id: &u16| {
            let interface = names.interface(*id)?;
            Some(SidecarInterface {
                name: interface.name.clone(),
                link_type: interface.link_type.0,
                packets: self.per_interface.get(id).copied().unwrap_or(0),
                time_resolution_ns: interface.time_resolution_ns,
                time_source: interface.time_domain.as_str(),
            })
        };
        let mut facts = self.facts.clone();
        let has_failed = self.sink.fault.is_some();
        for alert in &mut facts.alerts {
            if has_failed || self.taken.restamped > 0 || self.sink.held().locations.len() > 1 {
                // A frame's number is certain only in a single, complete file without restamped
                // packets.
                alert.packet = None;
            }
            // The frame may be among the packets that were not written.
            alert.frame = alert.frame.filter(|is_there| !(has_failed && *is_there));
        }
        Sidecar {
            report,
            facts,
            interfaces: described.filter_map(describe).collect(),
            origin: origin.clone(),
            program: PROGRAM,
            created: self.completion.created.clone(),
        }
    }
}
