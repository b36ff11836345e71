//! What dumps cost, on its way to the director.

use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc::SyncSender},
};

use super::output::Written;
use crate::control::progress::{Cost, Costs};

/// What a file holds of a packet beside its bytes: an enhanced packet block (pcapng, section 4.3).
const PACKET_OVERHEAD_BYTES: u64 = 32;

/// See the module.
#[derive(Debug)]
pub(super) struct Spending {
    costs: Arc<Costs>,
    /// Live the director hears in every round. Offline it hears when it asks only: so it knows the same in every run.
    is_live: bool,
    untold: BTreeMap<usize, Cost>,
    /// The analyzer waits for an answer.
    asked: Option<Question>,
}

/// What the dumps cost when all is written that they want of the records before `ends`.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) ends: Vec<u64>,
    reply: SyncSender<()>,
}

impl Spending {
    pub(super) fn new(costs: Arc<Costs>, is_live: bool) -> Self {
        Self {
            costs,
            is_live,
            untold: BTreeMap::new(),
            asked: None,
        }
    }

    /// The analyzer asks, and waits until all is written that can be.
    pub(super) fn ask(&mut self, ends: Vec<u64>, reply: SyncSender<()>) {
        self.asked = Some(Question { ends, reply });
    }

    pub(super) fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// Takes a question, to be answered by [`Self::tell`].
    pub(super) fn take_question(&mut self) -> Option<Question> {
        self.asked.take()
    }

    /// A dump of a rule has so much in its files, or aside for them. `told_bytes`: what it had when this was last called.
    pub(super) fn wrote(&mut self, rule: usize, written: &Written, told_bytes: &mut u64) {
        let bytes = written.bytes + written.packets * PACKET_OVERHEAD_BYTES;
        let news = bytes.saturating_sub(std::mem::replace(told_bytes, bytes));
        if news > 0 {
            self.untold.entry(rule).or_default().bytes += news;
        }
    }

    /// A dump of a rule is done with.
    pub(super) fn finished(&mut self, rule: usize) {
        self.untold.entry(rule).or_default().finished += 1;
    }

    /// A round is over, in which a question was answered or not.
    pub(super) fn tell(&mut self, question: Option<Question>) {
        if self.is_live || question.is_some() {
            self.costs.add(std::mem::take(&mut self.untold));
        }
        if let Some(question) = question {
            let _ = question.reply.send(());
        }
    }
}
