use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    iter,
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use retroscope_capture::TimeDomain;
use retroscope_packet::LinkType;
use retroscope_pcapfile::CaptureReader;

use super::{
    budget::{Charge, Load, PoolLimits},
    queue::SinkQueue,
    work::{
        PoolShared, PoolState, SinkBody, SinkOutcome, SinkSlot, SinkTask, SinkWork, WorkClass,
        WorkTask,
    },
};
use crate::{
    control::lock,
    dump::{
        block::{Block, SpareBlocks},
        captures::Captures,
        encode::DumpFormat,
        file::{DumpFile, FileFacts},
        hostile_tests::sidecar,
        names::Directory,
        output::CaptureOutput,
        packet::{PacketKey, PacketMeta},
        sink::{PacketGap, SinkContents, SinkEnd},
        stream::{DigestTime, Heading},
        template::NameFacts,
    },
    intake::interfaces::RecordedInterface,
    tests::fake_disk::FakeDisk,
};

const BUDGET: usize = 1 << 20;

fn captures() -> Captures {
    Captures::new(DumpFormat::PcapNg, Heading::default())
}

fn header(limits: &Arc<PoolLimits>) -> Arc<Load> {
    let output = CaptureOutput::new(DumpFormat::PcapNg, LinkType::ETHERNET, &Heading::default());
    Arc::new(Load {
        piece: output.unwrap().take(Block::default()),
        charge: Charge::new(&Arc::default(), limits),
    })
}

fn body(directory: &Directory, limits: &Arc<PoolLimits>) -> SinkBody {
    let facts = FileFacts {
        names: NameFacts::default(),
        number: 1,
        name_number: 1,
        next_number: Arc::default(),
        rule_name: None,
        heading: Heading::default(),
    };
    SinkBody::new(Box::new(DumpFile::new(directory, facts)), limits)
}

fn slot(limits: &Arc<PoolLimits>, has_begun: bool, work: SinkWork) -> SinkSlot {
    let disk = Arc::new(FakeDisk::default());
    let directory = Directory::on(disk, Path::new("dumps"), DumpFormat::PcapNg);
    let mut slot = SinkSlot::new(body(&directory, limits));
    (slot.work, slot.has_begun) = (VecDeque::from([work]), has_begun);
    slot
}

/// First packets come first. Slow work never takes more workers than the limit.
#[test]
fn nothing_waits_for_slow_work_and_slow_work_is_done() {
    let limits = Arc::new(limits());
    let packets = || SinkWork::Write(header(&limits));
    let end = || SinkWork::Finish(Box::new((SinkEnd::default(), captures())));
    let tell = SinkWork::WriteSidecar(Box::new(sidecar()));
    let mut state = PoolState::default();
    let all = [
        (true, packets()),
        (true, end()),
        (true, end()),
        (true, end()),
        (false, packets()),
        (false, SinkWork::Create(header(&limits))),
        (true, tell),
    ];
    for (id, (has_begun, work)) in (0..).zip(all) {
        state.slots.insert(id, slot(&limits, has_begun, work));
        state.list(id);
    }
    let next = |state: &mut PoolState| match state.next(2)? {
        SinkTask::Work(task) => Some(task),
        SinkTask::Digest(..) => panic!("these files have no digests"),
    };
    let mut tasks: Vec<Box<WorkTask>> = iter::from_fn(|| next(&mut state)).collect();
    let taken: Vec<u64> = tasks.iter().map(|task| task.id).collect();
    assert_eq!(taken, [4, 5, 6, 0, 1], "2 and 3 are too many");
    assert!(next(&mut state).is_none());
    state.submit(4, packets());
    assert!(next(&mut state).is_none(), "a worker has it");
    let done = tasks.remove(0);
    state.put_back(done.id, Some(done.body));
    let write = next(&mut state).map(|task| task.class);
    assert_eq!(write, Some(WorkClass::Write));
    let slow = tasks.remove(1);
    state.slow -= 1;
    state.put_back(slow.id, Some(slow.body));
    assert_eq!(next(&mut state).map(|task| task.id), Some(2));
}

fn limits() -> PoolLimits {
    PoolLimits {
        budget_bytes: BUDGET,
        files_kept: 0,
        queued: Arc::default(),
        files: AtomicUsize::new(0),
        spares: SpareBlocks::default(),
    }
}

/// Lets queues grow in random order, each as far as it may. Returns the bytes of each queue.
fn grown(queues: usize, random: &mut fastrand::Rng) -> Vec<usize> {
    let limits = limits();
    let mut queued = vec![0; queues];
    let mut refused = 0;
    while refused < 100 * queues {
        let (queue, more) = (random.usize(..queues), random.usize(1..2000));
        if limits.has_room(queued[queue], more) {
            queued[queue] += more;
            limits.queued.fetch_add(more, Ordering::Relaxed);
            refused = 0;
        } else {
            refused += 1;
        }
        let used = limits.queued.load(Ordering::Relaxed);
        assert!(used <= BUDGET, "{queues} queues: {used}");
        assert_eq!(used, queued.iter().sum::<usize>());
    }
    queued
}

#[test]
fn queues_share_the_budget_and_leave_some() {
    let mut random = fastrand::Rng::with_seed(16);
    for queues in [1, 2, 10] {
        let queued = grown(queues, &mut random);
        // In the end each queue has about half of the rest of the budget.
        let share = BUDGET / (queues + 2);
        for bytes in &queued {
            let near = share * 3 / 4..share * 5 / 4;
            assert!(near.contains(bytes), "{queued:?}");
        }
    }
    grown(5000, &mut random);
}

struct Left {
    outcome: SinkOutcome,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

/// Writes a dump of random packets, gaps and interfaces. `is_queued`: the work is done about once
/// for each MiB, otherwise after each packet. `capacity`: bytes that the disk has room for.
fn left(seed: u64, is_queued: bool, capacity: usize) -> Left {
    let mut random = fastrand::Rng::with_seed(seed);
    let disk = FakeDisk::default();
    let directory = Directory::on(
        Arc::new(disk.clone()),
        Path::new("dumps"),
        DumpFormat::PcapNg,
    )
    .with_digests(DigestTime::AsWritten);
    let limits = Arc::new(PoolLimits {
        budget_bytes: usize::MAX,
        ..limits()
    });
    let body = body(&directory, &limits);
    let shared = Arc::new(PoolShared {
        limits,
        slow_max: 1,
        state: Mutex::default(),
        work: Condvar::new(),
        compressions: Condvar::new(),
        done: Condvar::new(),
    });
    let how = (captures(), &directory);
    let mut queue = SinkQueue::new(1, how, (SinkContents::default(), false), &shared);
    lock(&shared.state).slots.insert(1, SinkSlot::new(body));
    let (mut chance, mut outcomes) = (random.fork(), Vec::new());
    let mut work = |outcomes: &mut Vec<SinkOutcome>| {
        let mut state = lock(&shared.state);
        while let Some(task) = state.next(1) {
            match task {
                SinkTask::Work(mut task) => {
                    if chance.u8(..20) == 0 {
                        task.body.file.close_files();
                    }
                    let done = (task.body).perform(task.work, task.digests, task.is_last);
                    outcomes.extend(done);
                    state.slow -= usize::from(task.class == WorkClass::Slow);
                    state.put_back(task.id, Some(task.body));
                }
                SinkTask::Digest(id, mut digests, load) => {
                    digests.update(&load.piece);
                    state.put_digests_back(id, digests);
                }
            }
        }
    };
    queue.begin();
    work(&mut outcomes);
    disk.set_capacity(capacity);
    let mut described = BTreeSet::new();
    let (mut time_ns, mut bytes) = (1000, 0);
    // Some seeds make large packets, some small packets; late packets and gaps are frequent or
    // rare.
    let longest = [100, 1514, 9000, 262_000][(seed % 4) as usize];
    let rarity = [20, 500, 10_000, 1_000_000][(seed / 4 % 4) as usize];
    while bytes < 20 << 20 {
        let mut is_rare = || random.usize(..rarity) == 0;
        let (is_late, is_trigger, is_gap) = (is_rare(), is_rare(), is_rare());
        let (is_stepped, is_other) = (is_rare(), is_rare());
        time_ns += random.i64(0..3);
        let key = PacketKey {
            time_ns: time_ns - if is_late { 500 } else { 0 },
            source: 0,
            producer: 0,
            record: bytes as u64,
        };
        let meta = PacketMeta {
            key,
            stamp_ns: key.time_ns + i64::from(is_stepped),
            wire_len: 1 << 20,
            interface: if is_other { 1 } else { 0 },
            direction: random.u8(..3),
            is_trigger,
        };
        if is_gap {
            queue.gap(&PacketGap {
                packets: Some(7),
                is_exact: true,
                from_ns: time_ns,
                to_ns: time_ns,
            });
        }
        if described.insert(meta.interface) {
            let described = RecordedInterface {
                source: 0,
                name: format!("eth{}", meta.interface),
                link_type: LinkType::ETHERNET,
                time_resolution_ns: 1,
                time_domain: TimeDomain::File,
            };
            queue.interface(meta.interface, &Arc::new(described));
        }
        let length = random.usize(..longest);
        let data: Vec<u8> = iter::repeat_n(random.u8(..), length).collect();
        queue.packet(&meta, &data);
        bytes += data.len();
        if random.usize(..8 << 20) < length {
            queue.flush();
        }
        if random.usize(..1 << 20) < length || !is_queued {
            work(&mut outcomes);
        }
    }
    let end = SinkWork::Finish(Box::new((SinkEnd::default(), queue.end())));
    shared.submit(1, end);
    work(&mut outcomes);
    let names = disk.names().into_iter();
    Left {
        outcome: outcomes.pop().unwrap(),
        files: names
            .map(|name| (name.clone(), disk.read(&name).unwrap()))
            .collect(),
    }
}

#[test]
fn a_queue_makes_the_same_files_as_writing_at_once() {
    let first = fastrand::u64(..u64::from(u32::MAX)) * 16;
    for seed in first..first + 16 {
        let [queued, at_once] = [true, false].map(|is_queued| left(seed, is_queued, usize::MAX));
        let digests = [&queued, &at_once].map(|left| match &left.outcome {
            SinkOutcome::Done { failed: None, held } => held.files[0].sha256.clone().unwrap(),
            outcome => panic!("seed {seed}: {outcome:?}"),
        });
        assert_eq!(digests[0], digests[1], "seed {seed}");
        assert!(queued.files == at_once.files, "seed {seed}");
    }
}

#[test]
fn blocks_that_a_full_disk_refuses_leave_whole_packets() {
    let first = fastrand::u64(..u64::from(u32::MAX)) * 16;
    for seed in first..first + 16 {
        let queued = left(seed, true, fastrand::usize(10_000..18 << 20));
        let SinkOutcome::Done {
            failed: Some(fault),
            ..
        } = &queued.outcome
        else {
            panic!("seed {seed}: {:?}", queued.outcome);
        };
        let (held, path) = (&fault.held, &fault.held.locations[0]);
        let bytes = &queued.files[path];
        let mut reader = CaptureReader::new(bytes.as_slice()).unwrap();
        let mut packets = 0;
        while reader.next().unwrap().is_some() {
            packets += 1;
        }
        assert_eq!(held.safe.packets, packets, "seed {seed}");
    }
}
