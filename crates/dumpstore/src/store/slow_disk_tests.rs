//! Listings, room and deletions while the disk hangs.

use std::{
    path::Path,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::{
    keeper::{KeeperRequest, StoreThreads},
    lister::{Question, StoredDumps},
    queue::{NoAnswer, QUESTIONS_MAX},
    tests::{min_free, put_dump},
};
use crate::{
    directory::DumpDirectory,
    tests::{
        FakeClock,
        fake_disk::{Deed, FakeDisk},
    },
};

/// Longer than any operation that does not hang.
const WAIT: Duration = Duration::from_secs(20);

/// Blocks threads until the gate is opened. The pair is the number of threads that arrived, and
/// whether the gate is open.
#[derive(Debug, Default)]
struct Gate(Mutex<(usize, bool)>, Condvar);

impl Gate {
    fn pass(&self) {
        let mut state = self.0.lock().unwrap();
        state.0 += 1;
        self.1.notify_all();
        let is_closed = |state: &mut (usize, bool)| !state.1;
        drop(self.1.wait_while(state, is_closed).unwrap());
    }

    fn open(&self) {
        self.0.lock().unwrap().1 = true;
        self.1.notify_all();
    }

    fn wait_for_one(&self) {
        let is_none = |state: &mut (usize, bool)| state.0 == 0;
        let state = self.0.lock().unwrap();
        let (state, _) = self.1.wait_timeout_while(state, WAIT, is_none).unwrap();
        assert!(state.0 > 0, "no thread came");
    }
}

/// A directory in which one kind of operation hangs until the gate is opened.
struct Hanging {
    thread: Arc<StoreThreads>,
    gate: Arc<Gate>,
    /// Number of listings since the operation began to hang.
    listings: Arc<AtomicUsize>,
}

impl Hanging {
    fn at(hangs: Deed) -> Self {
        let disk = FakeDisk::default();
        for number in 0..9 {
            put_dump(&disk, "dumps", &number.to_string(), 1000, number, "udp");
        }
        disk.set_capacity(100_000);
        let directory = DumpDirectory::on(Arc::new(disk.clone()), Path::new("dumps"));
        let clock = Arc::<FakeClock>::default();
        let thread =
            StoreThreads::start(directory, min_free(0), clock, Arc::new(mpsc::channel().0))
                .unwrap();
        // With these two calls both threads have listed the directory.
        assert!(thread.keeper().make_room(1));
        assert_eq!(thread.keeper().look(Question::List, WAIT).unwrap().len(), 8);
        let (gate, listings) = (Arc::<Gate>::default(), Arc::<AtomicUsize>::default());
        let (passing, counting) = (Arc::clone(&gate), Arc::clone(&listings));
        disk.set_slow(move |deed, path| {
            if deed == Deed::List && path == Path::new("dumps") {
                counting.fetch_add(1, Ordering::SeqCst);
            }
            if deed == hangs {
                passing.pass();
            }
        });
        Self {
            thread: Arc::new(thread),
            gate,
            listings,
        }
    }

    fn list(&self, wait: Duration) -> JoinHandle<Result<StoredDumps, NoAnswer>> {
        let thread = Arc::clone(&self.thread);
        std::thread::spawn(move || thread.keeper().look(Question::List, wait))
    }

    fn wait_for_questions(&self, count: usize) {
        let deadline = Instant::now() + WAIT;
        while self.thread.keeper().questions() != count {
            assert!(Instant::now() < deadline, "{count} questions");
            std::thread::yield_now();
        }
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.gate.open();
    }
}

#[test]
fn room_is_made_while_a_listing_hangs() {
    let hanging = Hanging::at(Deed::List);
    let listing = hanging.list(WAIT);
    hanging.gate.wait_for_one();
    let has_room = hanging.thread.keeper().make_room_within(1, WAIT / 4);
    assert!(has_room, "the listing delays the writer of a dump");
    hanging.gate.open();
    assert_eq!(listing.join().unwrap().unwrap().len(), 7);
}

#[test]
fn those_who_ask_at_once_share_a_listing() {
    let hanging = Hanging::at(Deed::List);
    let first = hanging.list(WAIT);
    hanging.gate.wait_for_one();
    let others: Vec<_> = (0..40).map(|_| hanging.list(WAIT)).collect();
    hanging.wait_for_questions(40);
    hanging.gate.open();
    assert!(first.join().unwrap().is_ok());
    let lists = others.into_iter().map(|it| it.join().unwrap().unwrap());
    let lists: Vec<_> = lists.collect();
    assert_eq!(hanging.listings.load(Ordering::SeqCst), 2);
    assert!(lists.iter().all(|list| Arc::ptr_eq(list, &lists[0])));
}

#[test]
fn questions_are_bounded_and_removed_when_their_time_is_over() {
    let hanging = Hanging::at(Deed::List);
    let first = hanging.list(WAIT);
    hanging.gate.wait_for_one();
    let keeper = hanging.thread.keeper();
    for _ in 0..2 * QUESTIONS_MAX {
        let late = keeper.look(Question::List, Duration::ZERO);
        assert_eq!(late.unwrap_err(), NoAnswer::Late);
        assert_eq!(keeper.questions(), 0);
    }
    let waiting: Vec<_> = (0..QUESTIONS_MAX).map(|_| hanging.list(WAIT)).collect();
    hanging.wait_for_questions(QUESTIONS_MAX);
    let refused = keeper.look(Question::List, WAIT).unwrap_err();
    assert_eq!(refused, NoAnswer::Busy);
    hanging.gate.open();
    for list in waiting.into_iter().chain([first]) {
        assert!(list.join().unwrap().is_ok());
    }
}

/// Even the maximum number of pending deletions does not delay the writer of a dump.
#[test]
fn room_is_made_before_deletions_that_wait() {
    let hanging = Hanging::at(Deed::Look);
    let delete = |id: usize| {
        let thread = Arc::clone(&hanging.thread);
        let delete = move |reply| KeeperRequest::Delete(id.to_string(), None, reply);
        std::thread::spawn(move || thread.keeper().ask(delete, WAIT))
    };
    let first = delete(1);
    hanging.gate.wait_for_one();
    // These requests delete all dumps. A request for room that is served after these requests finds
    // nothing to delete.
    let others: Vec<_> = (0..QUESTIONS_MAX).map(|n| delete(1 + n % 8)).collect();
    let deadline = Instant::now() + WAIT;
    let wait_for = |count, is_over: &dyn Fn() -> bool| {
        while hanging.thread.keeper().requests() != count && !is_over() {
            assert!(Instant::now() < deadline, "{count} requests");
            std::thread::yield_now();
        }
    };
    wait_for(QUESTIONS_MAX, &|| false);
    let thread = Arc::clone(&hanging.thread);
    let room = std::thread::spawn(move || thread.keeper().make_room_within(1, WAIT));
    wait_for(QUESTIONS_MAX + 1, &|| room.is_finished());
    hanging.gate.open();
    assert!(
        room.join().unwrap(),
        "the writer of a dump waits behind deletions"
    );
    for deletion in others.into_iter().chain([first]) {
        assert!(deletion.join().unwrap().unwrap().is_ok());
    }
}

/// If the disk hangs for the dump-keeper itself, the writer of a dump continues without room.
#[test]
fn waiting_for_room_has_a_limit() {
    let hanging = Hanging::at(Deed::Look);
    let keeper = hanging.thread.keeper();
    let wait = Duration::from_millis(20);
    for _ in 0..3 {
        assert!(!keeper.make_room_within(1, wait));
        let delete = |reply| KeeperRequest::Delete("8".to_owned(), None, reply);
        assert_eq!(keeper.ask(delete, wait).unwrap_err(), NoAnswer::Late);
    }
    hanging.gate.open();
    assert!(keeper.make_room_within(1, WAIT));
    let listed = keeper.look(Question::List, WAIT).unwrap();
    let is_kept = listed.iter().any(|dump| dump.id == "8");
    assert!(is_kept, "a request whose time was over is carried out");
}
