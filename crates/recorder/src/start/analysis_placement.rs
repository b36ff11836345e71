//! Which threads analyze packets, and the number of shards.

use std::{iter, sync::Arc};

use retroscope_flow::TrackerConfig;
use retroscope_script::Partition;

use crate::{
    analysis::{
        derivation::{Derivation, Templates},
        flows::{FlowSender, ShardFlows},
        functions::ScriptFunctions,
        shard::Shard,
        shard_slots::{AnalysisPlacement, ShardSlots},
        triggers::Triggers,
    },
    control::{common::RecorderShared, lock, ring_time::StampRestorer},
    intake::{inserter::shards::SHARDS, marks::Marks},
    start::config::Analyzers,
};

impl Analyzers {
    /// Maximum number of readers of the ring that live inserters need to run shards.
    pub(crate) fn releasing_readers_max(self, offline: bool, queues: usize) -> usize {
        match self {
            Self::Auto | Self::Inline if !offline => queues,
            _ => 0,
        }
    }

    /// Maximum number of readers of the ring that other threads need to run shards.
    pub(crate) fn readers_max(self) -> usize {
        match self {
            Self::Threads(threads) if threads.get() > 1 => threads.get().min(SHARDS),
            Self::Auto | Self::Inline | Self::Threads(_) => 0,
        }
    }
}

/// The facts on which the placement depends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation {
    pub(crate) offline: bool,
    /// Queues of all sources, at least 1.
    pub(crate) queues: usize,
    /// Live: capture threads, which divide the queues, at least 1.
    pub(crate) producers: usize,
    /// Number of requested readers for which the ring has room.
    pub(crate) readers: usize,
    /// Whether all packets of a flow, in both directions, arrive at one queue.
    pub(crate) flows_together: bool,
    /// Which packets one instance of a trigger script or module must see; of several, the value for
    /// the most packets. `None`: no trigger scripts or modules.
    pub(crate) triggers: Option<Partition>,
    /// Which packets one instance of the dump script must see; `None`: no dump script.
    pub(crate) dump: Option<Partition>,
    /// Whether first fragments are remembered, for later fragments of their flow.
    pub(crate) learns: bool,
    /// Whether flows are counted.
    pub(crate) flows: bool,
    /// Whether there are modules over flows.
    pub(crate) modules: bool,
    /// Whether trigger scripts or modules may join pairs of addresses.
    pub(crate) joins: bool,
}

/// Chooses the threads and the number of shards. The text and the error are messages for the user.
pub(crate) fn choose(
    analyzers: Analyzers,
    it: Situation,
) -> Result<(AnalysisPlacement, usize, Option<String>), String> {
    let one = (AnalysisPlacement::Analyzer, 1, None);
    let only_one = |why: &str| {
        let notice = format!("analyzers: one thread analyzes all packets: {why}");
        (AnalysisPlacement::Analyzer, 1, Some(notice))
    };
    let readers = |placement, asked: usize| match asked.min(it.readers) {
        0 | 1 => only_one("a --ring of this size has no room for more readers"),
        readers if readers < asked => {
            let notice = format!(
                "analyzers: {readers} threads analyze packets: a --ring of this size has no room for more readers"
            );
            (placement, readers, Some(notice))
        }
        readers => (placement, readers, None),
    };
    let script =
        "a script needs all packets in order (unless its file sets partition = 'flow' or 'host')";
    let flows = "flows are reported in the order in which they end";
    let modules = "modules need all packets of the files in order";
    let joins = "a script calls partition.join, and results from files must not depend on threads";
    let dump = it.dump.filter(|_| !it.offline);
    let least = it.triggers.into_iter().chain(dump).min();
    if let Analyzers::Threads(threads) = analyzers
        && threads.get() > 1
        && least == Some(Partition::None)
    {
        return Err(format!(
            "analyzers = {threads}: a script needs all packets in one thread (partition = 'none')"
        ));
    }
    if it.offline {
        // Hits are turned into dump expressions in the order of packets.
        let is_divided = least != Some(Partition::Undeclared) && !it.flows && !it.modules;
        let is_divided = is_divided && !it.joins;
        return Ok(match analyzers {
            Analyzers::Threads(threads) if threads.get() > 1 && is_divided => {
                readers(AnalysisPlacement::ShardReaders, threads.get().min(SHARDS))
            }
            Analyzers::Threads(threads) if threads.get() > 1 => only_one(match it {
                Situation { flows: true, .. } => flows,
                Situation { modules: true, .. } => modules,
                Situation { joins: true, .. } if least > Some(Partition::Undeclared) => joins,
                _ => script,
            }),
            Analyzers::Auto | Analyzers::Inline | Analyzers::Threads(_) => one,
        });
    }
    let why_not = match least {
        _ if it.queues == 1 => None,
        Some(Partition::None | Partition::Undeclared) => Some(script),
        _ if it.joins => {
            Some("a script calls partition.join, but the packets arrive at several queues")
        }
        Some(Partition::Host) => Some(
            "a script needs all packets of a pair of addresses, but they arrive at several queues",
        ),
        Some(Partition::Flow) if !it.flows_together => {
            Some("a script needs all packets of a flow, but they arrive at several queues")
        }
        None if it.learns && !it.flows_together => Some(
            "a dump expression selects flows, but the fragments of a flow arrive at several queues",
        ),
        _ if it.flows && !it.flows_together => {
            Some("flows are counted, but the packets of a flow arrive at several queues")
        }
        Some(Partition::Flow) | None => None,
    };
    Ok(match analyzers {
        Analyzers::Inline if it.producers < it.queues => {
            return Err(format!(
                "analyzers = \"inline\": each interface needs a capture thread (capture-threads = {})",
                it.producers
            ));
        }
        Analyzers::Auto
            if it.triggers.or(it.dump).is_some()
                || why_not.is_some()
                || it.producers < it.queues =>
        {
            one
        }
        Analyzers::Auto => (AnalysisPlacement::Inserters, it.queues, None),
        Analyzers::Inline => match why_not {
            None => (AnalysisPlacement::Inserters, it.queues, None),
            Some(why) => return Err(format!("analyzers = \"inline\": {why}")),
        },
        Analyzers::Threads(threads) if threads.get() == 1 => one,
        Analyzers::Threads(_) if least == Some(Partition::Undeclared) => only_one(script),
        // Dividing the queues costs nothing. Address pairs can be divided among more threads than
        // queues.
        Analyzers::Threads(threads) if threads.get() <= it.producers && why_not.is_none() => {
            readers(AnalysisPlacement::Readers, threads.get())
        }
        Analyzers::Threads(threads) => {
            readers(AnalysisPlacement::ShardReaders, threads.get().min(SHARDS))
        }
    })
}

/// Makes shards, one for each of `scripts`, all with the same rules. From files with readers of
/// shards, also returns the derivation of dump filters, for the analyzer.
pub(crate) fn place_shards(
    who: AnalysisPlacement,
    (rules, scripts): (Triggers, Vec<ScriptFunctions>),
    templates: &Templates,
    flows: Option<&(TrackerConfig, FlowSender)>,
    marks: Option<&Arc<Marks>>,
    common: &RecorderShared,
) -> (Arc<ShardSlots>, Option<Derivation>) {
    let stamps = || StampRestorer::new(&common.ring);
    let has_modules = (scripts.iter()).any(|functions| functions.triggers.has_modules());
    let kind = (common.is_live(), has_modules);
    let derive = |dump| Derivation::new(templates.clone(), dump, stamps(), kind);
    let is_derived_apart = !common.is_live() && who == AnalysisPlacement::ShardReaders;
    let mut derivation = None;
    let mut shards = Vec::with_capacity(scripts.len());
    let siblings = (1..scripts.len()).map(|_| rules.sibling());
    let siblings: Vec<_> = siblings.collect();
    for (rules, scripts) in iter::once(rules).chain(siblings).zip(scripts) {
        let derives = derive(scripts.dump);
        let its_own = if is_derived_apart {
            derivation.get_or_insert(derives);
            None
        } else {
            Some(derives)
        };
        let names = common.intake.interface_cache();
        let shard = Shard::new((rules, scripts.triggers), its_own, names, stamps());
        let flows = flows.map(|(config, sender)| {
            ShardFlows::new(*config, shards.capacity(), sender.clone(), common)
        });
        shards.push(shard.with_flows(flows).marking(marks.cloned()));
    }
    let slots = ShardSlots::new(shards, who);
    let counters = slots.all().iter().map(|slot| Arc::clone(&slot.counters));
    *lock(&common.shards) = counters.collect();
    (Arc::new(slots), derivation)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    fn threads(n: usize) -> Analyzers {
        Analyzers::Threads(NonZeroUsize::new(n).unwrap())
    }

    fn chosen(analyzers: Analyzers, it: Situation) -> Option<(AnalysisPlacement, usize)> {
        choose(analyzers, it)
            .ok()
            .map(|(who, shards, _)| (who, shards))
    }

    #[test]
    fn packets_are_divided_only_where_nobody_needs_them_together() {
        let four = Situation {
            offline: false,
            queues: 4,
            producers: 4,
            readers: 40,
            flows_together: true,
            triggers: None,
            dump: None,
            learns: false,
            flows: false,
            modules: false,
            joins: false,
        };
        let one = Situation {
            queues: 1,
            producers: 1,
            ..four
        };
        let apart = Situation {
            flows_together: false,
            ..four
        };
        let of = |partition| Situation {
            triggers: Some(partition),
            ..four
        };
        let file = Situation {
            offline: true,
            ..one
        };
        let (analyzer, inserters, readers, shards) = (
            AnalysisPlacement::Analyzer,
            AnalysisPlacement::Inserters,
            AnalysisPlacement::Readers,
            AnalysisPlacement::ShardReaders,
        );
        let (auto, inline) = (Analyzers::Auto, Analyzers::Inline);
        for (analyzers, situation, expected) in [
            (auto, one, Some((inserters, 1))),
            (auto, four, Some((inserters, 4))),
            (auto, apart, Some((inserters, 4))),
            (
                auto,
                Situation {
                    learns: true,
                    ..four
                },
                Some((inserters, 4)),
            ),
            (
                auto,
                Situation {
                    learns: true,
                    ..apart
                },
                Some((analyzer, 1)),
            ),
            (auto, of(Partition::Flow), Some((analyzer, 1))),
            (
                auto,
                Situation {
                    dump: Some(Partition::None),
                    ..one
                },
                Some((analyzer, 1)),
            ),
            (
                inline,
                Situation {
                    triggers: Some(Partition::None),
                    ..one
                },
                Some((inserters, 1)),
            ),
            (inline, of(Partition::Flow), Some((inserters, 4))),
            (inline, of(Partition::Host), None),
            (inline, of(Partition::None), None),
            (
                inline,
                Situation {
                    triggers: Some(Partition::Flow),
                    ..apart
                },
                None,
            ),
            (threads(1), four, Some((analyzer, 1))),
            (threads(2), one, Some((shards, 2))),
            (threads(2), four, Some((readers, 2))),
            (threads(4), of(Partition::Flow), Some((readers, 4))),
            (threads(4), apart, Some((readers, 4))),
            (
                threads(4),
                Situation {
                    flows: true,
                    ..apart
                },
                Some((shards, 4)),
            ),
            (threads(8), four, Some((shards, 8))),
            (threads(40), four, Some((shards, SHARDS))),
            (threads(4), of(Partition::Host), Some((shards, 4))),
            (threads(4), of(Partition::None), None),
            (threads(4), of(Partition::Undeclared), Some((analyzer, 1))),
            (
                threads(4),
                Situation {
                    joins: true,
                    ..of(Partition::Flow)
                },
                Some((shards, 4)),
            ),
            (
                inline,
                Situation {
                    joins: true,
                    ..of(Partition::Flow)
                },
                None,
            ),
            (
                threads(4),
                Situation {
                    triggers: Some(Partition::Host),
                    joins: true,
                    ..file
                },
                Some((analyzer, 1)),
            ),
            (
                threads(2),
                Situation {
                    dump: Some(Partition::None),
                    ..four
                },
                None,
            ),
            (
                threads(2),
                Situation {
                    dump: Some(Partition::Undeclared),
                    ..four
                },
                Some((analyzer, 1)),
            ),
            (auto, file, Some((analyzer, 1))),
            (inline, file, Some((analyzer, 1))),
            (threads(1), file, Some((analyzer, 1))),
            (threads(4), file, Some((shards, 4))),
            (threads(40), file, Some((shards, SHARDS))),
            (
                threads(4),
                Situation {
                    triggers: Some(Partition::Host),
                    ..file
                },
                Some((shards, 4)),
            ),
            (
                threads(4),
                Situation {
                    triggers: Some(Partition::None),
                    ..file
                },
                None,
            ),
            (
                threads(4),
                Situation {
                    triggers: Some(Partition::Undeclared),
                    ..file
                },
                Some((analyzer, 1)),
            ),
            (
                threads(4),
                Situation {
                    dump: Some(Partition::None),
                    learns: true,
                    ..file
                },
                Some((shards, 4)),
            ),
        ] {
            assert_eq!(
                chosen(analyzers, situation),
                expected,
                "{analyzers:?} {situation:?}"
            );
            if let Some((
                placement @ (AnalysisPlacement::Readers | AnalysisPlacement::ShardReaders),
                shards,
            )) = expected
            {
                let readers = analyzers.readers_max();
                assert!(shards <= readers, "{analyzers:?} {situation:?}");
                let small = Situation {
                    readers: shards - 1,
                    ..situation
                };
                let (who, fewer) = chosen(analyzers, small).unwrap();
                assert!(fewer <= small.readers.max(1), "{analyzers:?} {situation:?}");
                assert_eq!(who == placement, fewer > 1);
            }
        }
    }

    #[test]
    fn who_gets_other_than_asked_for_is_told() {
        let file = Situation {
            offline: true,
            queues: 1,
            producers: 1,
            readers: 40,
            flows_together: true,
            triggers: Some(Partition::Undeclared),
            dump: None,
            learns: false,
            flows: false,
            modules: false,
            joins: false,
        };
        let live = Situation {
            offline: false,
            ..file
        };
        let told = |analyzers, it| choose(analyzers, it).unwrap().2.is_some();
        assert!(told(threads(2), file) && told(threads(2), live));
        assert!(!told(threads(1), file) && !told(Analyzers::Auto, live));
    }
}
