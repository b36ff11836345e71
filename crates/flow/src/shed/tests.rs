use std::collections::HashMap;

use super::*;

const MS: i64 = 1_000_000;

/// The facts of a test frame, known without parsing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    flow: u8,
    is_reply: bool,
    time_ns: i64,
    flags: u8,
    payload: u16,
    /// For a fragment: identification, offset, and whether more fragments follow.
    piece: Option<(u16, u16, bool)>,
}

impl Sent {
    pub(super) fn new(flow: u8, is_reply: bool, time_ns: i64, flags: u8) -> Self {
        Self {
            flow,
            is_reply,
            time_ns,
            flags,
            payload: 0,
            piece: None,
        }
    }
}

/// Even flows are TCP, odd flows are UDP.
pub(super) fn frame(sent: &Sent) -> Vec<u8> {
    let is_tcp = sent.flow.is_multiple_of(2);
    let (ident, begin, more) = sent.piece.unwrap_or_default();
    let transport = match (begin, is_tcp) {
        (1.., _) => 0,
        (0, true) => 20,
        (0, false) => 8,
    };
    let mut data = vec![0; 12];
    data.extend([8, 0, 0x45, 0]);
    data.extend((20 + transport + sent.payload).to_be_bytes());
    data.extend(ident.to_be_bytes());
    data.extend(((begin / 8) | if more { 0x2000 } else { 0 }).to_be_bytes());
    data.extend([64, if is_tcp { 6 } else { 17 }, 0, 0]);
    let (client, server) = ([10, 0, 0, sent.flow], [10, 9, 9, 9]);
    let ports = [[4, sent.flow], [0, 80]];
    let ends = if sent.is_reply {
        [(server, ports[1]), (client, ports[0])]
    } else {
        [(client, ports[0]), (server, ports[1])]
    };
    data.extend(ends.iter().flat_map(|(address, _)| *address));
    if begin == 0 {
        data.extend(ends.iter().flat_map(|(_, port)| *port));
        if is_tcp {
            data.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, sent.flags, 0, 0, 0, 0, 0, 0]);
        } else {
            data.extend((8 + sent.payload).to_be_bytes());
            data.extend([0, 0]);
        }
    }
    data.resize(data.len() + usize::from(sent.payload), 7);
    data
}

/// Heavy-tailed flows that mix. They include reused ports, runs of packets with one byte like
/// keep-alives, repeated frames, fragments, and silence.
fn traffic(random: &mut fastrand::Rng) -> Vec<Sent> {
    let (mut sent, mut time_ns, mut ident) = (Vec::<Sent>::new(), 0, 0);
    for _ in 0..2000 {
        time_ns += if random.u8(..) < 4 {
            random.i64(0..3000) * MS
        } else {
            random.i64(0..5) * MS
        };
        // A few flows have most packets.
        let flow = random.u8(0..8) & random.u8(0..8);
        let one = Sent {
            flow,
            is_reply: random.u8(0..4) > 0,
            time_ns,
            flags: ACK,
            payload: random.choice([0, 1, 700, 1400]).unwrap(),
            piece: None,
        };
        match random.u8(0..40) {
            0 => sent.push(Sent {
                flags: SYN,
                payload: 0,
                is_reply: false,
                ..one
            }),
            1 => sent.push(Sent {
                flags: SYN | ACK,
                payload: 0,
                is_reply: true,
                ..one
            }),
            2 => sent.push(Sent {
                flags: FIN | ACK,
                ..one
            }),
            3 => sent.push(Sent {
                flags: RST,
                payload: 0,
                ..one
            }),
            4..8 => sent.extend((0..5).map(|n| Sent {
                payload: 1,
                time_ns: time_ns + n,
                ..one
            })),
            8..12 => {
                ident += 1;
                for (begin, payload, more) in [(0, 792, true), (800, 800, true), (1600, 99, false)]
                {
                    let piece = Some((ident, begin, more));
                    sent.push(Sent {
                        flow: flow | 1,
                        payload,
                        piece,
                        ..one
                    });
                }
            }
            12..16 if !sent.is_empty() => {
                let again = sent[sent.len() - 1];
                sent.push(Sent { time_ns, ..again });
            }
            _ => sent.push(one),
        }
    }
    sent
}

/// Which frames must be kept, computed from the facts of the frames.
fn expected(sent: &[Sent], cutoff: Cutoff) -> Vec<bool> {
    let mut flows = HashMap::<u8, ([u64; 2], i64)>::new();
    let kept = |one: &Sent| {
        let is_tcp = one.flow.is_multiple_of(2);
        let flags = if is_tcp { one.flags } else { 0 };
        let (bytes, last_ns) = flows.entry(one.flow).or_insert(([0; 2], one.time_ns));
        if flags & (SYN | ACK) == SYN || (one.time_ns - *last_ns).abs() >= cutoff.refill_ns {
            (*bytes, *last_ns) = ([0; 2], one.time_ns);
        }
        *last_ns = one.time_ns.max(*last_ns);
        let sent = &mut bytes[usize::from(one.is_reply)];
        let before = *sent;
        *sent += u64::from(one.payload);
        before < cutoff.bytes || flags & (SYN | FIN | RST) != 0
    };
    sent.iter().map(kept).collect()
}

fn shedder(cutoffs: Vec<Cutoff>, flows_max: usize) -> Shedder {
    let tracker = TrackerConfig {
        flows_max,
        ..TrackerConfig::default()
    };
    let config = ShedderConfig {
        shunts: cutoffs.is_empty(),
        cutoffs,
        ..ShedderConfig::default()
    };
    Shedder::new(config, &tracker, Secret::random(), |_| {})
}

fn keeps(shedder: &mut Shedder, one: &Sent, class: Option<u16>, is_exempt: bool) -> bool {
    keeps_marked(shedder, one, class, is_exempt.then_some(Mark::Exempt))
}

fn keeps_marked(shedder: &mut Shedder, one: &Sent, class: Option<u16>, mark: Option<Mark>) -> bool {
    let data = frame(one);
    let wire_len = u32::try_from(data.len()).unwrap();
    // Truncated, to show that the captured part of the payload does not matter.
    let captured = &data[..data.len().min(60)];
    let place = (one.time_ns, wire_len);
    shedder
        .sheds(LinkType::ETHERNET, place, captured, || class, |_, _| mark)
        .is_none()
}

#[test]
fn it_keeps_what_an_oracle_keeps() {
    let (mut kept, mut shed) = (0, 0);
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let cutoff = Cutoff {
            bytes: random.choice([0, 1, 1400, 20_480, 100_000]).unwrap(),
            refill_ns: random.choice([1, 40 * MS, 1000 * MS, 60_000 * MS]).unwrap(),
        };
        let sent = traffic(&mut random);
        let mut shedder = shedder(vec![cutoff], 1000);
        for (number, (one, expected)) in sent.iter().zip(expected(&sent, cutoff)).enumerate() {
            let found = keeps(&mut shedder, one, Some(0), false);
            assert_eq!(found, expected, "{seed}: {cutoff:?}, {number}: {one:?}");
            *if found { &mut kept } else { &mut shed } += 1;
        }
    }
    assert!(kept > 20_000 && shed > 20_000, "{kept} {shed}");
}

#[test]
fn flows_are_shunted_until_they_begin_anew() {
    let (mut kept, mut shed) = (0, 0);
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let sent = traffic(&mut random);
        let mut shedder = shedder(Vec::new(), 1000);
        // By flow: time of the beginning, time of the last shunt, and whether the flow is exempt.
        let mut known = HashMap::<u8, (i64, Option<i64>, bool)>::new();
        for (number, one) in sent.iter().enumerate() {
            let flags = if one.flow.is_multiple_of(2) && one.piece.is_none() {
                one.flags
            } else {
                0
            };
            let (began, shunted, is_exempt) =
                *known.entry(one.flow).or_insert((one.time_ns, None, false));
            let began = if flags & (SYN | ACK) == SYN {
                one.time_ns
            } else {
                began
            };
            let mark = match (is_exempt, shunted) {
                (true, _) => Some(Mark::Exempt),
                (false, shunted) => shunted.map(|at_ns| Mark::Shunted { at_ns }),
            };
            let is_off = !is_exempt && shunted.is_some_and(|at_ns| at_ns >= began);
            let expected = !is_off || flags & (SYN | FIN | RST) != 0;
            let found = keeps_marked(&mut shedder, one, None, mark);
            assert_eq!(found, expected, "{seed}: {number}: {one:?} {mark:?}");
            *if found { &mut kept } else { &mut shed } += 1;
            let shunted = if found && random.u8(..) < 8 {
                Some(one.time_ns)
            } else {
                shunted
            };
            known.insert(one.flow, (began, shunted, is_exempt || random.u16(..) < 8));
        }
    }
    assert!(kept > 20_000 && shed > 20_000, "{kept} {shed}");
    let mut shedder = shedder(Vec::new(), 10);
    let mut at = |time_ns, mark| {
        let one = Sent { time_ns, ..DATA };
        keeps_marked(&mut shedder, &one, None, mark)
    };
    let mark = Some(Mark::Shunted { at_ns: 5 });
    assert!(at(0, None) && !at(6, mark) && !at(IDLE_NS, mark) && at(3 * IDLE_NS, mark));
}

const DATA: Sent = Sent {
    flow: 1,
    is_reply: false,
    time_ns: 0,
    flags: ACK,
    payload: 1000,
    piece: None,
};

#[test]
fn classes_exemptions_and_flows_given_up() {
    let cutoff = |bytes| Cutoff {
        bytes,
        refill_ns: 1000 * MS,
    };
    let cutoffs = || vec![cutoff(1), cutoff(2001)];
    let mut by_class = [(None, 10), (Some(0), 1), (Some(1), 3)].into_iter();
    assert!(by_class.all(|(class, kept)| {
        let mut shedder = shedder(cutoffs(), 10);
        (0..10)
            .filter(|_| keeps(&mut shedder, &DATA, class, false))
            .count()
            == kept
    }));
    let mut shedder = shedder(cutoffs(), 1);
    let mut ask = |one, is_exempt| keeps(&mut shedder, one, Some(0), is_exempt);
    // A flow stays exempt.
    assert!(ask(&DATA, false) && !ask(&DATA, false) && ask(&DATA, true) && ask(&DATA, false));
    // The other flow took the only slot, so this flow begins again.
    assert!(ask(&Sent { flow: 3, ..DATA }, false));
    assert!(ask(&DATA, false) && !ask(&DATA, false));
}

#[test]
fn the_first_cause_is_told() {
    let cutoff = Cutoff {
        bytes: 3000,
        refill_ns: 1000 * MS,
    };
    let config = ShedderConfig {
        cutoffs: vec![cutoff],
        tail_drop: Some(TailDrop::new(1)),
        shunts: true,
        has_limit: true,
    };
    let tracker = TrackerConfig::default();
    let mut shedder = Shedder::new(config, &tracker, Secret::random(), |_| {});
    (0..12).for_each(|_| shedder.tail_drop().unwrap().period(true));
    let data = frame(&DATA);
    let ask = |shedder: &mut Shedder, mark| {
        let place = (0, u32::try_from(data.len()).unwrap());
        shedder.sheds(LinkType::ETHERNET, place, &data, || Some(0), |_, _| mark)
    };
    let shunted = Some(Mark::Shunted { at_ns: 0 });
    assert_eq!(ask(&mut shedder, None), None);
    assert_eq!(ask(&mut shedder, shunted), Some(ShedCause::TailDrop));
    shedder.set_limit(Some(1500));
    assert_eq!(ask(&mut shedder, shunted), Some(ShedCause::Limit));
    shedder.set_limit(None);
    assert_eq!(ask(&mut shedder, shunted), Some(ShedCause::Cutoff));
    shedder.config.cutoffs.clear();
    assert_eq!(ask(&mut shedder, shunted), Some(ShedCause::TailDrop));
    shedder.config.tail_drop = None;
    assert_eq!(ask(&mut shedder, shunted), Some(ShedCause::Shunt));
    assert_eq!(ask(&mut shedder, None), None);
}

#[test]
fn what_has_no_flow_is_kept() {
    let cutoff = Cutoff {
        bytes: 0,
        refill_ns: 1,
    };
    let mut shedder = shedder(vec![cutoff], 10);
    let arp: Vec<u8> = [&[0; 12][..], &[8, 6], &[0; 28]].concat();
    let mut random = fastrand::Rng::with_seed(1);
    let mut keep = |data: &[u8]| {
        shedder
            .sheds(LinkType::ETHERNET, (0, 60), data, || Some(0), |_, _| None)
            .is_none()
    };
    assert!(keep(&arp));
    assert!(keep(&frame(&DATA)[..30]), "cut within the header of IP");
    let later = Sent {
        piece: Some((9, 800, false)),
        ..DATA
    };
    assert!(keep(&frame(&later)), "nobody saw the first fragment");
    assert!(!keep(&frame(&DATA)));
    for _ in 0..100_000 {
        let mut data = frame(&DATA);
        for _ in 0..random.usize(1..6) {
            let at = random.usize(..60);
            data[at] = random.u8(..);
        }
        keep(&data[..random.usize(..data.len())]);
    }
}

#[test]
fn few_flows_end_with_a_packet() {
    let cutoff = Cutoff {
        bytes: 1,
        refill_ns: 1000 * MS,
    };
    let mut shedder = shedder(vec![cutoff], 1 << 16);
    let of = |flow: u16, time_ns| {
        let mut data = frame(&Sent { time_ns, ..DATA });
        data[34..36].copy_from_slice(&flow.to_be_bytes());
        (time_ns, data)
    };
    let ask = |shedder: &mut Shedder, (time_ns, data): (i64, Vec<u8>)| {
        let place = (time_ns, 1042);
        shedder.sheds(LinkType::ETHERNET, place, &data, || Some(0), |_, _| None);
        shedder.table.len()
    };
    (0..10_000).for_each(|flow| {
        ask(&mut shedder, of(flow, 0));
    });
    let mut before = 10_000;
    for packet in 0..10_000 {
        let now = ask(&mut shedder, of(20_000, 70_000 * MS + packet));
        assert!(before - now <= ENDED_WITH_A_PACKET, "{before} {now}");
        before = now;
    }
    assert_eq!(before, 1);
}

/// After one packet with a stamp in the far future, later silence is still detected. A shunt by an
/// older packet that arrives late applies.
#[test]
fn stamps_may_be_wrong() {
    let cutoff = Cutoff {
        bytes: 1000,
        refill_ns: 5000 * MS,
    };
    let mut shedder = shedder(vec![cutoff], 10);
    let mut at = |time_ms: i64| {
        let one = Sent {
            time_ns: time_ms * MS,
            ..DATA
        };
        keeps(&mut shedder, &one, Some(0), false)
    };
    let times = [0, 1, 1_000_000_000, 2, 3, 6000, 11_000, 11_001];
    let expected = [true, false, true, true, false, true, true, false];
    assert_eq!(times.map(&mut at), expected);
    let mut shedder = self::shedder(Vec::new(), 10);
    let mut at = |time_ns, mark| {
        let one = Sent { time_ns, ..DATA };
        keeps_marked(&mut shedder, &one, None, mark)
    };
    let mark = Some(Mark::Shunted { at_ns: 7 });
    assert!(at(9, None) && at(7, None) && !at(10, mark));
}

#[test]
fn what_begins_anew_has_a_time_of_its_own() {
    const S: i64 = 1000 * MS;
    for refill_ns in [S, 300 * S] {
        let cutoff = Cutoff {
            bytes: 1_000_000,
            refill_ns,
        };
        let config = ShedderConfig {
            cutoffs: vec![cutoff],
            tail_drop: Some(TailDrop::new(2)),
            shunts: true,
            ..ShedderConfig::default()
        };
        let tracker = TrackerConfig::default();
        let mut shedder = Shedder::new(config, &tracker, Secret::random(), |_| {});
        (0..12).for_each(|_| shedder.tail_drop().unwrap().period(true));
        let mut at = |flow, time_ns, mark| {
            let one = Sent {
                flow,
                time_ns,
                ..DATA
            };
            keeps_marked(&mut shedder, &one, Some(0), mark)
        };
        let times = [0, S, 2 * S, 10 * S, 69 * S, 129 * S];
        let kept = times.map(|time_ns| at(1, time_ns, None));
        assert_eq!(kept, [true, true, false, false, false, true], "{refill_ns}");
        let mark = Some(Mark::Shunted { at_ns: S });
        let times = [0, 2 * S, 61 * S, 121 * S];
        let kept = times.map(|time_ns| at(3, time_ns, mark.filter(|_| time_ns > 0)));
        assert_eq!(kept, [true, false, false, true], "{refill_ns}");
    }
}

#[test]
fn directions_are_handed_over_and_taken_back() {
    let cutoff = Cutoff {
        bytes: 1000,
        refill_ns: 5000 * MS,
    };
    let mut shedder = shedder(vec![cutoff], 10);
    shedder.set_hands_over(true);
    let mut at = |is_reply, time_ms: i64, flags, mark| {
        let one = Sent {
            flow: 2,
            is_reply,
            flags,
            time_ns: time_ms * MS,
            ..DATA
        };
        let is_kept = keeps_marked(&mut shedder, &one, Some(0), mark);
        let told = shedder.take_hand_overs().into_iter();
        // The client has the smaller address.
        let told = told.map(|it| (it.ends.is_reverse, it.dropped.map(|(ns, _)| ns / MS)));
        (is_kept, told.collect::<Vec<_>>())
    };
    let (none, drop, take) = (None, Some(4800), vec![]);
    assert_eq!(at(false, 0, ACK, none), (true, take.clone()));
    assert_eq!(at(false, 1, ACK, none), (false, vec![(false, drop)]));
    assert_eq!(at(false, 1000, ACK, none), (false, take.clone()));
    assert_eq!(at(false, 1001, ACK, none), (false, vec![(false, drop)]));
    assert_eq!(at(false, 1002, FIN | ACK, none), (true, take.clone()));
    // The other direction has sent no payload yet.
    assert_eq!(at(true, 1003, ACK, none), (true, take.clone()));
    assert_eq!(at(true, 1004, ACK, none), (false, vec![(true, drop)]));
    let both = vec![(false, None), (true, None)];
    assert_eq!(at(false, 7000, ACK, none), (true, both.clone()));
    assert_eq!(at(true, 7001, ACK, none), (true, take.clone()));
    assert_eq!(at(false, 7002, ACK, none), (false, vec![(false, drop)]));
    assert_eq!(at(true, 7003, ACK, none), (false, vec![(true, drop)]));
    let exempt = Some(Mark::Exempt);
    let (is_kept, mut told) = at(true, 7004, ACK, exempt);
    told.sort_unstable();
    assert_eq!((is_kept, told), (true, both));
    assert_eq!(at(true, 7005, ACK, exempt), (true, take.clone()));
    // The SYN may have passed the engine before dropping began. So the shedder takes the direction
    // back.
    let (none, mut shedder) = (None, self::shedder(vec![cutoff], 10));
    shedder.set_hands_over(true);
    let mut shed = |time_ms: i64, flags| {
        let one = Sent {
            flow: 2,
            flags,
            time_ns: time_ms * MS,
            ..DATA
        };
        keeps_marked(&mut shedder, &one, Some(0), none);
        shedder.take_hand_overs().len()
    };
    let told = [(0, ACK), (1, ACK), (2, SYN), (3, ACK), (4, ACK)];
    assert_eq!(told.map(|(at, flags)| shed(at, flags)), [0, 1, 1, 1, 0]);
    shedder.end_hand_overs();
    assert_eq!(
        [(5, ACK), (6, SYN), (7, ACK), (8, ACK)].map(|(at, flags)| {
            let one = Sent {
                flow: 2,
                flags,
                time_ns: at * MS,
                ..DATA
            };
            keeps_marked(&mut shedder, &one, Some(0), none);
            let told = shedder.take_hand_overs();
            assert!(told.iter().all(|it| it.dropped.is_none()));
            told.len()
        }),
        [0, 1, 0, 0]
    );
}

#[test]
fn cutoffs_change_for_flows_that_are_known() {
    let of = |bytes| Cutoff {
        bytes,
        refill_ns: 1000 * MS,
    };
    let config = ShedderConfig {
        cutoffs: vec![of(1000), of(5000)],
        ..ShedderConfig::default()
    };
    let tracker = TrackerConfig::default();
    let mut shedder = Shedder::new(config, &tracker, Secret::from_words(|_| 1), |_| {});
    let mut time_ns = 0;
    // How many of five UDP packets of 700 bytes are kept, and how often the class was requested.
    let mut keeps = |shedder: &mut Shedder, flow, class: Option<u16>| {
        let mut asked = 0;
        let kept = [0; 5].map(|_| {
            time_ns += MS;
            let data = frame(&Sent {
                payload: 700,
                ..Sent::new(flow, false, time_ns, 0)
            });
            let wire_len = u32::try_from(data.len()).unwrap();
            let class = || {
                asked += 1;
                class
            };
            let place = (time_ns, wire_len);
            let shed = shedder.sheds(LinkType::ETHERNET, place, &data, class, |_, _| None);
            shed.is_none()
        });
        (kept.iter().filter(|is_kept| **is_kept).count(), asked)
    };
    assert_eq!(keeps(&mut shedder, 1, Some(0)), (2, 1));
    assert_eq!(keeps(&mut shedder, 3, Some(1)), (5, 1));
    assert_eq!(keeps(&mut shedder, 5, None), (5, 1));
    shedder.set_cutoffs(vec![of(4500)]);
    assert_eq!(
        keeps(&mut shedder, 1, Some(0)),
        (2, 1),
        "3,500 bytes are sent, and kept up to 4,500"
    );
    assert_eq!(keeps(&mut shedder, 3, None), (5, 1));
    assert_eq!(keeps(&mut shedder, 5, Some(0)), (2, 1));
    assert_eq!(keeps(&mut shedder, 5, Some(0)), (0, 0));
    shedder.set_cutoffs(Vec::new());
    for flow in [1, 3, 5] {
        assert_eq!(keeps(&mut shedder, flow, None), (5, 1));
    }
}
