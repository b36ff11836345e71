//! The inserter's own look at packets: tells the analyzer which ones it may pass by unread.
//!
//! Records go to memory past the cache, and the analyzer reads them back on another processor: of frames of 1514 bytes that
//! took it longer than to try a filter on them. A live inserter has the frames in its first-level cache. So where a few rules run
//! as programs, it tries them itself before it stores a burst, and publishes up to which record there are *suspects*:
//! packets that match a rule, or may be a fragment where flows are wanted. After that record the analyzer need not look at
//! packets, nor wake up for them: it is called where there is a suspect, and now and then to move on. It still counts all packets, looks
//! at those that are suspect, and alone decides what becomes of a hit.
//!
//! R-Scope folds its analyzer into the thread that empties the NIC's ring ("long queue emulation", section 2.1), as long as that ring
//! holds what comes meanwhile (lemma 1). So does this look, which is the part of the work that every packet pays for: an inserter at its
//! limit calls everything suspect and leaves the look to the analyzer, which has a thread of its own, and so it does with
//! bursts whose frames are not stored as they stand. Trigger scripts, and rules that are looked up, are the analyzer's.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use retroscope_capture::{Burst, FrameMeta, REST_NS_MAX};
use retroscope_filter::{Aux, Frame, Joint};
use retroscope_packet::LinkType;
use retroscope_ring::{Ring, Waker};

use crate::analysis::{
    chunk::{MANY, fragments},
    prepared::Prepared,
};

/// What a record takes in the ring beside its bytes.
const DESCRIPTOR_BYTES: u64 = 16;
/// All inserters together leave no more than this part of the ring unread before they call: one in 8.
const RING_SHARE: u64 = 8;

/// An inserter whose source does not run dry for this long is at its limit, ns. What came during the longest rest of an engine is stored
/// in less time, as long as the inserter has half of its time left.
const INSERTER_LIMIT_NS: i64 = REST_NS_MAX;

/// For each producer, the record after which none is suspect. One inserter writes each mark, the analyzer reads them.
#[derive(Debug, Clone)]
pub(crate) struct Suspects(Arc<[Mark]>);

/// A producer's mark, on a cache line of its own: its inserter writes it once a burst.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Mark(AtomicU64);

/// The look-out of one inserter.
#[derive(Debug, Clone)]
pub(crate) struct Lookout {
    rules: Rules,
    suspects: Suspects,
    analyzer: Waker,
    /// When the source last ran dry, or woke from that with new frames, on the monotonic clock, ns.
    dry_ns: i64,
    /// Whether the source was dry at the last publication.
    is_dry: bool,
    /// Whether the source has run dry within the last [`INSERTER_LIMIT_NS`]: only then this thread looks itself.
    has_time: bool,
    /// Whether a suspect record was stored since the analyzer was last called.
    is_due: bool,
    /// Bytes stored since the analyzer was last called, and the number from which on it is called even if none is suspect.
    unread: u64,
    unread_max: u64,
}

/// What is suspect.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    pub(crate) prepared: Vec<Prepared>,
    /// As one function, in place of them.
    pub(crate) joints: Vec<(LinkType, Joint)>,
    /// Fragments.
    pub(crate) fragments: bool,
}

impl Suspects {
    /// None yet, among the records of `producers` producers.
    pub(crate) fn new(producers: usize) -> Self {
        Self((0..producers).map(|_| Mark::default()).collect())
    }

    /// Some of the producer's records before `end` may be suspect: to be called before they are stored. It is never before the end
    /// of what was stored, so a suspect record that the analyzer has not read yet stays before it.
    fn mark(&self, producer: usize, end: u64) {
        // Relaxed: ordered before the records by their publication (the ring's edge P1).
        self.0[producer].0.store(end, Relaxed);
    }

    /// Whether no published record of the producer from `first` on is suspect. To be asked after some of them were found.
    pub(crate) fn none_from(&self, producer: usize, first: u64) -> bool {
        // Relaxed: whoever sees a record published also sees the mark that was stored before it (the ring's edge P1). A mark only grows,
        // so a newer one is safe as well.
        self.0[producer].0.load(Relaxed) <= first
    }
}

impl Lookout {
    /// For the inserters of `producers` queues, which try `rules`, and what their analyzer reads of it.
    pub(crate) fn arrange(
        rules: Rules,
        ring: &Ring,
        producers: usize,
        analyzer: Waker,
    ) -> (Self, Suspects) {
        let suspects = Suspects::new(producers);
        let lookout = Self {
            rules,
            suspects: suspects.clone(),
            analyzer,
            dry_ns: i64::MIN,
            is_dry: false,
            has_time: true,
            is_due: false,
            unread: 0,
            unread_max: ring.bytes() / (RING_SHARE * producers as u64).max(1),
        };
        (lookout, suspects)
    }

    /// Looks at frames that the producer will store as they stand, after the `first` records that it has stored.
    pub(crate) fn look(
        &mut self,
        (producer, first): (usize, u64),
        (link_type, interface): (LinkType, u16),
        burst: &Burst<'_>,
        frames: &[FrameMeta],
    ) {
        if !self.has_time {
            return self.leave((producer, first), frames.len());
        }
        let bytes = |meta: &FrameMeta| u64::from(meta.captured_len) + DESCRIPTOR_BYTES;
        self.unread += frames.iter().map(bytes).sum::<u64>();
        if !self.rules.is_clear(link_type, interface, burst, frames) {
            self.leave((producer, first), frames.len());
        }
    }

    /// Leaves the look at the next `count` records to the analyzer, or at more if not all of them are stored.
    pub(crate) fn leave(&mut self, (producer, first): (usize, u64), count: usize) {
        self.suspects.mark(producer, first + count as u64);
        self.is_due = true;
    }

    /// The source was asked at `now_ns` of the monotonic clock. If it was dry before, it rested until then.
    pub(crate) fn asked(&mut self, now_ns: i64) {
        if self.is_dry {
            self.dry_ns = now_ns;
        }
    }

    /// What was stored is published, and the source `is_dry` or not, at `now_ns` of the monotonic clock: calls the analyzer, if it
    /// is to look at something. Returns whether some of it is suspect.
    pub(crate) fn told(&mut self, is_dry: bool, now_ns: i64) -> bool {
        self.is_dry = is_dry;
        if is_dry {
            self.dry_ns = now_ns;
        }
        self.has_time = now_ns.saturating_sub(self.dry_ns) < INSERTER_LIMIT_NS;
        if self.is_due || self.unread >= self.unread_max {
            self.analyzer.wake();
            self.unread = 0;
        }
        std::mem::take(&mut self.is_due)
    }
}

impl Rules {
    fn is_clear(
        &self,
        link_type: LinkType,
        interface: u16,
        burst: &Burst<'_>,
        frames: &[FrameMeta],
    ) -> bool {
        if !self.prepared.iter().all(|rule| rule.knows(link_type)) {
            return false;
        }
        let joint = self.joints.iter().find(|(of, _)| *of == link_type);
        let mut results = [0; Joint::MANY];
        let mut views = [Frame::new(&[], 0, Aux::default()); MANY];
        frames.chunks(MANY).all(|some| {
            for (view, meta) in views.iter_mut().zip(some) {
                let data = &burst.memory[meta.offset..meta.offset + meta.captured_len as usize];
                *view = Frame::new(data, meta.wire_len, meta.direction.into());
            }
            let views = &views[..some.len()];
            let is_hit = match joint {
                Some((_, joint)) => joint.run_many(views, &mut results) != 0,
                None => {
                    let is_hit =
                        |rule: &Prepared| rule.matches_many(link_type, interface, views) != 0;
                    self.prepared.iter().any(is_hit)
                }
            };
            !(is_hit || self.fragments && fragments(link_type, views) != 0)
        })
    }
}

#[cfg(test)]
pub(crate) use tests::lookout as lookout_of_test;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use retroscope_capture::Direction;
    use retroscope_filter::Filter;
    use retroscope_ring::{GroupKind, Reader, RingConfig};

    use super::*;
    use crate::{
        analysis::prepared::{LinkTypes, mode},
        tests::rig::udp,
    };

    /// A lookout for a rule on packets of a link type, what the analyzer sees of it, and the analyzer's reader.
    pub(crate) fn lookout(
        text: &str,
        link_type: LinkType,
        fragments: bool,
    ) -> (Lookout, Suspects, Reader) {
        let mut rule = Prepared::new(Filter::plain(text).unwrap(), mode(false));
        rule.check(&LinkTypes::new(&[link_type], &Vec::new))
            .unwrap();
        let rules = Rules {
            prepared: vec![rule],
            joints: Vec::new(),
            fragments,
        };
        let ring = Ring::new(&RingConfig::new(16 << 20, 2, 1), None).unwrap();
        let reader = ring.group(GroupKind::Lapped).unwrap();
        let (lookout, suspects) = Lookout::arrange(rules, &ring, 2, reader.waker());
        (lookout, suspects, reader)
    }

    /// Lets it look at 100 packets to these ports, in a burst behind `first` records.
    fn look(lookout: &mut Lookout, first: u64, port: impl Fn(usize) -> u16) {
        let mut memory = Vec::new();
        let mut frames = Vec::new();
        for index in 0..100 {
            let data = udp(1, port(index), 0);
            frames.push(FrameMeta {
                time_ns: 0,
                offset: memory.len(),
                captured_len: u32::try_from(data.len()).unwrap(),
                wire_len: 100,
                interface: 0,
                direction: Direction::Inbound,
                vlan: None,
            });
            memory.extend(data);
        }
        let burst = Burst {
            memory: &memory,
            frames: &frames,
        };
        lookout.look((1, first), (LinkType::RAW, 0), &burst, &frames);
    }

    /// Whether the analyzer was called since it was last asked.
    fn is_called(reader: &mut Reader) -> bool {
        reader.doze(Duration::ZERO)
    }

    #[test]
    fn suspects_are_told_up_to_the_end_of_their_burst() {
        let (mut lookout, suspects, _) = lookout("udp dst port 7", LinkType::RAW, false);
        look(&mut lookout, 0, |_| 8);
        assert!(suspects.none_from(1, 0), "none at all");
        for (first, suspect) in [(100, 0), (200, 63), (300, 64), (400, 99)] {
            look(&mut lookout, first, |index| 8 - u16::from(index == suspect));
            assert!(!suspects.none_from(1, first), "{suspect}");
            assert!(!suspects.none_from(1, first + 99), "{suspect}");
            assert!(suspects.none_from(1, first + 100), "{suspect}");
        }
        look(&mut lookout, 500, |_| 8);
        assert!(suspects.none_from(1, 500));
        assert!(!suspects.none_from(1, 499), "it is told still");
        lookout.leave((1, 600), 50);
        assert!(!suspects.none_from(1, 649) && suspects.none_from(1, 650));
        assert!(suspects.none_from(0, 0), "of another producer");
    }

    #[test]
    fn what_it_cannot_tell_is_suspect() {
        let (mut unknown, suspects, _) = lookout("udp", LinkType::RAW, false);
        let burst = Burst {
            memory: &[0; 60],
            frames: &[],
        };
        let frame = FrameMeta {
            time_ns: 0,
            offset: 0,
            captured_len: 60,
            wire_len: 60,
            interface: 0,
            direction: Direction::Inbound,
            vlan: None,
        };
        unknown.look((0, 5), (LinkType::ETHERNET, 0), &burst, &[frame]);
        assert!(!suspects.none_from(0, 5), "its link type");
        let (mut fragments, suspects, _) = lookout("udp dst port 7", LinkType::RAW, true);
        look(&mut fragments, 0, |_| 8);
        assert!(!suspects.none_from(1, 0), "of raw IP any packet");
    }

    #[test]
    fn an_inserter_at_its_limit_leaves_the_look_to_the_analyzer() {
        let (mut lookout, suspects, _) = lookout("udp dst port 7", LinkType::RAW, false);
        lookout.told(true, 1_000);
        lookout.told(false, 1_000 + INSERTER_LIMIT_NS - 1);
        look(&mut lookout, 0, |_| 8);
        assert!(suspects.none_from(1, 0));
        lookout.told(false, 1_000 + INSERTER_LIMIT_NS);
        look(&mut lookout, 100, |_| 8);
        assert!(!suspects.none_from(1, 199));
        lookout.told(true, 2_000 + INSERTER_LIMIT_NS);
        look(&mut lookout, 200, |_| 8);
        assert!(suspects.none_from(1, 200));
    }

    #[test]
    fn a_rest_is_no_work() {
        let (mut lookout, suspects, _) = lookout("udp dst port 7", LinkType::RAW, false);
        lookout.told(true, 0);
        lookout.asked(3 * INSERTER_LIMIT_NS);
        lookout.told(false, 4 * INSERTER_LIMIT_NS - 1);
        look(&mut lookout, 0, |_| 8);
        assert!(suspects.none_from(1, 0));
        // It gives frames all the time.
        lookout.asked(4 * INSERTER_LIMIT_NS);
        lookout.told(false, 4 * INSERTER_LIMIT_NS);
        look(&mut lookout, 100, |_| 8);
        assert!(!suspects.none_from(1, 199));
    }

    #[test]
    fn the_analyzer_is_called_for_suspects_and_before_much_is_unread() {
        let (mut lookout, _, mut reader) = lookout("udp dst port 7", LinkType::RAW, false);
        look(&mut lookout, 0, |_| 8);
        lookout.told(true, 0);
        assert!(!is_called(&mut reader));
        look(&mut lookout, 100, |_| 7);
        assert!(!is_called(&mut reader), "nothing is published yet");
        lookout.told(true, 0);
        assert!(is_called(&mut reader));
        lookout.told(true, 0);
        assert!(!is_called(&mut reader), "once");
        // 1 MiB is an eighth of the ring for one of two.
        let burst_bytes = 100 * (udp(1, 8, 0).len() as u64 + 16);
        let bursts = (1_u64 << 20).div_ceil(burst_bytes);
        for burst in 1..=bursts {
            look(&mut lookout, 100 + 100 * burst, |_| 8);
            lookout.told(true, 0);
            assert_eq!(is_called(&mut reader), burst == bursts, "{burst}");
        }
    }
}
