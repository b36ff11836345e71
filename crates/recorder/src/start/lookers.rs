//! Who looks at packets: how many shards there are, and where.

use std::{iter, sync::Arc};

use retroscope_flow::TrackerConfig;
use retroscope_script::Partition;

use crate::{
    analysis::{
        derivation::{Derivation, Templates},
        flows::{FlowSender, Flows},
        functions::Functions,
        seats::{Lookers, Seats},
        shard::Shard,
        triggers::Triggers,
    },
    control::{common::Common, lock, ring_time::Stamps},
    intake::marks::Marks,
    start::config::Analyzers,
};

/// Shards of packets from files at most: what a record tells of its shard (`intake/inserter/shards.rs`).
pub(crate) const FILE_SHARDS_MAX: usize = 32;

impl Analyzers {
    /// What `auto` is where packets may be shed (`sheds`). From files an inserter asks about each packet that it may shed what was found in those before: it is
    /// quickest where it has looked at them itself.
    pub(crate) fn decided(self, offline: bool, sheds: bool) -> Self {
        match self {
            Self::Auto if offline && sheds => Self::Inline,
            analyzers => analyzers,
        }
    }

    /// Readers of the ring that shards may want, for sources of so many queues.
    pub(crate) fn readers_max(self, offline: bool, queues: usize) -> usize {
        let most = if offline { FILE_SHARDS_MAX } else { queues };
        match self {
            Self::Inline if offline => 1,
            Self::Threads(threads) if threads.get().min(most) > 1 => threads.get().min(most),
            Self::Auto | Self::Inline | Self::Threads(_) => 0,
        }
    }
}

/// What is to be known of what there is to look at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation {
    pub(crate) offline: bool,
    /// Queues of all sources, at least 1.
    pub(crate) queues: usize,
    /// Readers that there is room for in the ring, of those that were asked for.
    pub(crate) readers: usize,
    /// Whether all packets of a flow, both ways, come by one queue.
    pub(crate) flows_together: bool,
    /// The least that trigger scripts want to see in one state; `None`: there are none.
    pub(crate) triggers: Option<Partition>,
    /// The same of the dump script.
    pub(crate) dump: Option<Partition>,
    /// Whether first fragments are kept, for later ones of their flow.
    pub(crate) learns: bool,
    /// Whether flows are counted.
    pub(crate) flows: bool,
    /// Whether there are modules over flows.
    pub(crate) modules: bool,
}

/// Who looks at packets, and with how many shards. A sentence where that is other than what was asked for; the error is one for the user.
pub(crate) fn choose(
    analyzers: Analyzers,
    it: Situation,
) -> Result<(Lookers, usize, Option<String>), String> {
    let one = (Lookers::Analyzer, 1, None);
    let only_one = |why: &str| {
        let notice = format!("analyzers: one thread looks at all packets: {why}");
        (Lookers::Analyzer, 1, Some(notice))
    };
    let readers = |asked: usize| match asked.min(it.readers) {
        0 | 1 => only_one("there is no room for more readers in a --ring of this size"),
        readers if readers < asked => {
            let notice = format!(
                "analyzers: {readers} threads look at packets: there is no room for more readers in a --ring of this size"
            );
            (Lookers::Readers, readers, Some(notice))
        }
        readers => (Lookers::Readers, readers, None),
    };
    let script = "a script wants to see all packets in order (partition = 'flow' or 'host' in its file says that it does not)";
    let flows = "flows are counted, and told in the order in which they end";
    let modules = "modules see all packets of files in order";
    if it.offline {
        // What a hit dumps is derived in the order of packets, whoever finds it.
        let is_divided = it.triggers != Some(Partition::None) && !it.flows && !it.modules;
        return Ok(match analyzers {
            // A small ring has no room for it; what is found is the same.
            Analyzers::Inline if it.readers == 0 || it.modules => one,
            Analyzers::Inline => (Lookers::Readers, 1, None),
            Analyzers::Threads(threads) if threads.get() > 1 && is_divided => {
                readers(threads.get().min(FILE_SHARDS_MAX))
            }
            Analyzers::Threads(threads) if threads.get() > 1 => only_one(match it {
                Situation { flows: true, .. } => flows,
                Situation { modules: true, .. } => modules,
                _ => script,
            }),
            Analyzers::Auto | Analyzers::Threads(_) => one,
        });
    }
    let why_not = match it.triggers.into_iter().chain(it.dump).min() {
        _ if it.queues == 1 => None,
        Some(Partition::None) => Some(script),
        Some(Partition::Host) => {
            Some("a script wants all packets of a pair of addresses, which come by several queues")
        }
        Some(Partition::Flow) if !it.flows_together => {
            Some("a script wants all packets of a flow, which come by several queues")
        }
        None if it.learns && !it.flows_together => {
            Some("a dump expression asks for flows, whose fragments come by several queues")
        }
        _ if it.flows && !it.flows_together => {
            Some("flows are counted, whose packets come by several queues")
        }
        Some(Partition::Flow) | None => None,
    };
    Ok(match analyzers {
        Analyzers::Auto if it.triggers.or(it.dump).is_some() || why_not.is_some() => one,
        Analyzers::Auto => (Lookers::Inserters, it.queues, None),
        Analyzers::Inline => match why_not {
            None => (Lookers::Inserters, it.queues, None),
            Some(why) => return Err(format!("analyzers = \"inline\": {why}")),
        },
        Analyzers::Threads(threads) => match (threads.get().min(it.queues), why_not) {
            (1, _) if threads.get() == 1 => one,
            (1, _) => only_one("they come by one queue"),
            (_, Some(why)) => only_one(why),
            (threads, None) => readers(threads),
        },
    })
}

/// Seats shards, one for each of `scripts`, each with the same rules. Where they do not say what their hits would dump, what says it is returned
/// too: from files, where several find hits, it goes by the order of packets.
pub(crate) fn seat_shards(
    who: Lookers,
    (rules, scripts): (Triggers, Vec<Functions>),
    templates: &Templates,
    flows: Option<&(TrackerConfig, FlowSender)>,
    marks: Option<&Arc<Marks>>,
    common: &Common,
) -> (Arc<Seats>, Option<Derivation>) {
    let stamps = || Stamps::new(&common.ring);
    let has_modules = (scripts.iter()).any(|functions| functions.triggers.has_modules());
    let kind = (common.is_live(), has_modules);
    let derive = |dump| Derivation::new(templates.clone(), dump, stamps(), kind);
    let is_derived_apart = !common.is_live() && who == Lookers::Readers;
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
        let flows = flows
            .map(|(config, sender)| Flows::new(*config, shards.capacity(), sender.clone(), common));
        shards.push(shard.with_flows(flows).marking(marks.cloned()));
    }
    let seats = Seats::new(shards, who);
    let times = seats.all().iter().map(|seat| Arc::clone(&seat.times));
    *lock(&common.times) = times.collect();
    (Arc::new(seats), derivation)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    fn threads(n: usize) -> Analyzers {
        Analyzers::Threads(NonZeroUsize::new(n).unwrap())
    }

    fn chosen(analyzers: Analyzers, it: Situation) -> Option<(Lookers, usize)> {
        choose(analyzers, it)
            .ok()
            .map(|(who, shards, _)| (who, shards))
    }

    #[test]
    fn packets_are_divided_only_where_nobody_needs_them_together() {
        let four = Situation {
            offline: false,
            queues: 4,
            readers: 40,
            flows_together: true,
            triggers: None,
            dump: None,
            learns: false,
            flows: false,
            modules: false,
        };
        let one = Situation { queues: 1, ..four };
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
        let (analyzer, inserters, readers) =
            (Lookers::Analyzer, Lookers::Inserters, Lookers::Readers);
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
            (threads(2), one, Some((analyzer, 1))),
            (threads(2), four, Some((readers, 2))),
            (threads(8), four, Some((readers, 4))),
            (threads(8), of(Partition::Host), Some((analyzer, 1))),
            (threads(8), of(Partition::Flow), Some((readers, 4))),
            (
                threads(2),
                Situation {
                    dump: Some(Partition::None),
                    ..four
                },
                Some((analyzer, 1)),
            ),
            (auto, file, Some((analyzer, 1))),
            (inline, file, Some((readers, 1))),
            (threads(1), file, Some((analyzer, 1))),
            (threads(4), file, Some((readers, 4))),
            (threads(40), file, Some((readers, FILE_SHARDS_MAX))),
            (
                threads(4),
                Situation {
                    triggers: Some(Partition::Host),
                    ..file
                },
                Some((readers, 4)),
            ),
            (
                threads(4),
                Situation {
                    triggers: Some(Partition::None),
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
                Some((readers, 4)),
            ),
        ] {
            assert_eq!(
                chosen(analyzers, situation),
                expected,
                "{analyzers:?} {situation:?}"
            );
            if let Some((Lookers::Readers, shards)) = expected {
                let readers = analyzers.readers_max(situation.offline, situation.queues);
                assert!(shards <= readers, "{analyzers:?} {situation:?}");
                let small = Situation {
                    readers: shards - 1,
                    ..situation
                };
                let (who, fewer) = chosen(analyzers, small).unwrap();
                assert!(fewer <= small.readers.max(1), "{analyzers:?} {situation:?}");
                assert_eq!(who == Lookers::Readers, fewer > 1);
            }
        }
    }

    #[test]
    fn from_files_whoever_sheds_looks_itself() {
        let (auto, inline) = (Analyzers::Auto, Analyzers::Inline);
        for (analyzers, offline, sheds, decided) in [
            (auto, true, true, inline),
            (auto, true, false, auto),
            (auto, false, true, auto),
            (threads(2), true, true, threads(2)),
        ] {
            assert_eq!(analyzers.decided(offline, sheds), decided);
        }
    }

    #[test]
    fn who_gets_other_than_asked_for_is_told() {
        let file = Situation {
            offline: true,
            queues: 1,
            readers: 40,
            flows_together: true,
            triggers: Some(Partition::None),
            dump: None,
            learns: false,
            flows: false,
            modules: false,
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
