use std::{
    collections::VecDeque,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{
    batch::{Batch, Limits},
    work::{Body, Class, Slot, State, Task, Work},
};
use crate::{
    dump::{
        encode::Format,
        file::{DumpFile, FileFacts},
        names::Directory,
        stream::Heading,
        template::NameFacts,
    },
    tests::fake_disk::FakeDisk,
};

const BUDGET: usize = 1 << 20;

/// A sink with this work, to be created on a disk of its own.
fn slot(limits: &Arc<Limits>, has_begun: bool, work: Work) -> Slot {
    let disk = Arc::new(FakeDisk::default());
    let directory = Directory::on(disk, Path::new("dumps"), Format::PcapNg);
    let facts = FileFacts {
        names: NameFacts::default(),
        number: 1,
        name_number: 1,
        next_number: Arc::default(),
        rule_name: None,
        heading: Heading::default(),
    };
    let body = Body::new(Box::new(DumpFile::new(&directory, facts)), limits);
    Slot {
        body: Some(body),
        work: VecDeque::from([work]),
        has_begun,
    }
}

/// First packets come first; one worker is at slow work where there is any, more only where nothing is to be written, and never
/// more than may be.
#[test]
fn nothing_waits_for_slow_work_and_slow_work_is_done() {
    let limits = Arc::new(limits());
    let packets = || Work::Packets(Batch::new(&Arc::default(), &limits, 0));
    let end = || Work::Finish(Box::default());
    let tell = Work::Tell {
        amended: None,
        sidecar: None,
    };
    let mut state = State::default();
    let all = [
        (true, packets()),
        (true, end()),
        (true, end()),
        (true, end()),
        (false, packets()),
        (false, Work::Create),
        (true, tell),
    ];
    for (id, (has_begun, work)) in (0..).zip(all) {
        state.slots.insert((id, 0), slot(&limits, has_begun, work));
        state.list((id, 0));
    }
    let mut tasks: Vec<Task> = std::iter::from_fn(|| state.next(2)).collect();
    let taken: Vec<u64> = tasks.iter().map(|task| task.id.0).collect();
    assert_eq!(taken, [4, 5, 6, 0, 1], "2 and 3 are too many");
    assert!(state.next(2).is_none());
    state.submit((4, 0), packets());
    assert!(state.next(2).is_none(), "a worker has it");
    let done = tasks.remove(0);
    state.put_back(done.id, Some(done.body));
    assert_eq!(state.next(2).map(|task| task.class), Some(Class::Write));
    let slow = tasks.remove(1);
    state.slow -= 1;
    state.put_back(slow.id, Some(slow.body));
    assert_eq!(state.next(2).map(|task| task.id.0), Some(2));
}

fn limits() -> Limits {
    Limits {
        budget_bytes: BUDGET,
        files_kept: 0,
        queued: Arc::default(),
        files: AtomicUsize::new(0),
    }
}

/// Queues that grow as far as they may, in any order: how many bytes each.
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
        // Each has about half of what is left in the end.
        let share = BUDGET / (queues + 2);
        for bytes in &queued {
            let near = share * 3 / 4..share * 5 / 4;
            assert!(near.contains(bytes), "{queued:?}");
        }
    }
    grown(5000, &mut random);
}
