//! Requests to a handle that need no analyzer.

use std::sync::Arc;

use retroscope_capture::interface::NamedInterface;
use retroscope_ring::InterfaceEntry;

use crate::{
    control::{
        audit::{Change, Refusal},
        events::{Export, RecorderEvent, Subscription},
    },
    dump::{log::DumpCounts, report::DumpReport},
    start::{
        handle::{CommandError, RecorderHandle},
        recorder::RecorderStatus,
    },
};

impl RecorderHandle {
    /// The present state of the recorder.
    ///
    /// # Errors
    /// [`CommandError::Ended`].
    pub fn status(&self) -> Result<RecorderStatus, CommandError> {
        Ok(RecorderStatus::of(&*self.common()?, self))
    }

    /// The interfaces of the recording, by their numbers.
    ///
    /// # Errors
    /// [`CommandError::Ended`].
    pub fn interfaces(&self) -> Result<Vec<InterfaceEntry>, CommandError> {
        Ok(self.common()?.ring.interfaces())
    }

    /// The present speed of an interface's link, Mbit/s. `None`: unknown, or no live interface.
    #[must_use]
    pub fn link_speed_mbit(&self, interface: &str) -> Option<u32> {
        if self.rules.offline {
            return None;
        }
        NamedInterface::new(interface).ok()?.speed_mbit()
    }

    /// Checks that an expression compiles for at least one source.
    ///
    /// # Errors
    /// [`CommandError::Filter`].
    pub fn check_expression(&self, expression: &str) -> Result<(), CommandError> {
        self.rules.prepare(expression)?;
        Ok(())
    }

    /// Whether an expression reads only headers of packets, on each known link type:
    /// [`Filter::reads_headers_only`](retroscope_filter::Filter::reads_headers_only).
    ///
    /// # Errors
    /// [`CommandError::Filter`].
    pub fn reads_headers_only(&self, expression: &str) -> Result<bool, CommandError> {
        Ok(self.rules.prepare(expression)?.reads_headers_only())
    }

    /// The last 10,000 finished dumps, in the order of triggers, and the counts of the dumps that
    /// finished before these.
    ///
    /// # Errors
    /// [`CommandError::Ended`].
    pub fn finished_dumps(&self) -> Result<(Vec<Arc<DumpReport>>, DumpCounts), CommandError> {
        Ok(self.common()?.log.summary())
    }

    /// The first of the last 10,000 finished dumps for which `is_it` is true.
    ///
    /// # Errors
    /// [`CommandError::Ended`].
    pub fn finished_dump(
        &self,
        is_it: impl Fn(&DumpReport) -> bool,
    ) -> Result<Option<Arc<DumpReport>>, CommandError> {
        let last = self.common()?.log.last();
        Ok(last.into_iter().find(|report| is_it(report)))
    }

    /// Reports what packets a client got, or failed to get.
    pub fn tell_export(&self, export: Export) {
        self.log.tell(RecorderEvent::Exported(export));
    }

    /// Reports to listeners a change by a client or a reload, or a failed reload.
    pub fn tell_change(&self, change: Change) {
        self.log.tell(RecorderEvent::Changed(change));
    }

    /// Reports that clients were refused.
    pub fn tell_refusal(&self, refusal: Refusal) {
        self.log.tell(RecorderEvent::Refused(refusal));
    }

    /// Sends a message to listeners. Does not wait until listeners read.
    pub fn tell_notice(&self, text: String) {
        self.log.tell(RecorderEvent::Notice(text));
    }

    /// Listens to events from this number on. `None`, or a number in the future: from the next
    /// event on. The last 1024 events are kept; the listener gets the number of events that it
    /// missed.
    #[must_use]
    pub fn subscribe(&self, from: Option<u64>) -> Subscription {
        self.log.subscribe(from)
    }
}
