//! Starting the threads of a contestant together, and taking the time.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    contest::{Deadline, Failure, Load, Run, Tally},
    pin,
};

/// A run takes fractions of a second. After this it is given up.
pub const LIMIT: Duration = Duration::from_secs(20);
/// Looks before a waiting thread lets others run. Threads may be more than cores, so that the one waited for may be
/// waiting for this core.
const LOOKS: u32 = 64;

/// Tells the threads of a run when it is given up.
#[derive(Debug)]
pub struct Course {
    stopped: AtomicBool,
    limit: Duration,
}

impl Course {
    /// The run was given up, or a thread of it failed: return soon.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) // a hint; nothing is read on the strength of it
    }

    /// For a loop that waits for another thread: looks again at once for a while, then lets others run.
    ///
    /// # Errors
    /// [`Failure::Deadline`] once the run is given up.
    pub fn wait(&self, looks: &mut u32) -> Result<(), Failure> {
        *looks += 1;
        if *looks < LOOKS {
            std::hint::spin_loop();
            return Ok(());
        }
        thread::yield_now();
        if self.stopped() {
            return Err(Failure::Deadline {
                seconds: self.limit.as_secs(),
            });
        }
        Ok(())
    }
}

/// Runs producers and consumers, each on a thread of its own that is pinned to its core and stands ready before the clock
/// starts. The clock runs from before the first store to the last return of a consumer, which must return as soon as it
/// has seen its last packet. The result is not checked yet.
///
/// A thread that waits for another calls [`Course::wait`], or is woken by `stop`, which is called when the run is given up.
///
/// # Errors
/// The first [`Failure`] of a thread; [`Failure::Deadline`] after [`LIMIT`]; [`Failure::Panicked`].
pub fn race<P, C>(
    load: &Load,
    stop: &(dyn Fn() + Sync),
    producers: Vec<P>,
    consumers: Vec<C>,
) -> Result<Run, Failure>
where
    P: FnOnce(&Course) -> Result<(), Failure> + Send,
    C: FnOnce(&Course) -> Result<Tally, Failure> + Send,
{
    race_within(LIMIT, load, stop, producers, consumers)
}

fn race_within<P, C>(
    limit: Duration,
    load: &Load,
    stop: &(dyn Fn() + Sync),
    producers: Vec<P>,
    consumers: Vec<C>,
) -> Result<Run, Failure>
where
    P: FnOnce(&Course) -> Result<(), Failure> + Send,
    C: FnOnce(&Course) -> Result<Tally, Failure> + Send,
{
    assert_eq!(
        (producers.len(), consumers.len()),
        (load.producers, load.consumers)
    );
    let course = Course {
        stopped: AtomicBool::new(false),
        limit,
    };
    let threads = producers.len() + consumers.len();
    let barrier = Barrier::new(threads);
    let (ends, ended) = mpsc::channel::<Leg>();
    let (course, barrier) = (&course, &barrier);
    thread::scope(|scope| {
        let first_consumer = producers.len();
        for (index, producer) in producers.into_iter().enumerate() {
            let ends = ends.clone();
            scope.spawn(move || {
                let _ = ends.send(leg(barrier, index, || {
                    producer(course).map(|()| Tally::default())
                }));
            });
        }
        for (index, consumer) in consumers.into_iter().enumerate() {
            let ends = ends.clone();
            scope.spawn(move || {
                let _ = ends.send(leg(barrier, first_consumer + index, || consumer(course)));
            });
        }
        drop(ends);
        collect(&ended, threads, first_consumer, course, stop)
    })
}

/// What one thread did.
struct Leg {
    index: usize,
    start: Instant,
    end: Instant,
    result: Result<Tally, Failure>,
}

fn leg(barrier: &Barrier, index: usize, work: impl FnOnce() -> Result<Tally, Failure>) -> Leg {
    pin::pin(index);
    barrier.wait();
    let start = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Failure::Panicked));
    Leg {
        index,
        start,
        end: Instant::now(),
        result,
    }
}

fn collect(
    ended: &mpsc::Receiver<Leg>,
    threads: usize,
    first_consumer: usize,
    course: &Course,
    stop: &(dyn Fn() + Sync),
) -> Result<Run, Failure> {
    let deadline = Deadline::after(course.limit);
    let give_up = |course: &Course| {
        if !course.stopped.swap(true, Ordering::Relaxed) {
            stop();
        }
    };
    let mut failure = None;
    let (mut start, mut end) = (None::<Instant>, None::<Instant>);
    let mut seen = Tally::default();
    for _ in 0..threads {
        let left = deadline.left().unwrap_or(Duration::ZERO);
        let leg = match ended.recv_timeout(left) {
            Ok(leg) => leg,
            Err(_) => {
                failure.get_or_insert(Failure::Deadline {
                    seconds: course.limit.as_secs(),
                });
                give_up(course);
                match ended.recv() {
                    Ok(leg) => leg,
                    Err(_) => break,
                }
            }
        };
        match leg.result {
            Ok(tally) => seen += tally,
            Err(error) => {
                failure.get_or_insert(error);
                give_up(course);
            }
        }
        if leg.index < first_consumer {
            start = Some(start.map_or(leg.start, |start| start.min(leg.start)));
        } else {
            end = Some(end.map_or(leg.end, |end| end.max(leg.end)));
        }
    }
    match (failure, start, end) {
        (None, Some(start), Some(end)) => Ok(Run {
            seconds: end.duration_since(start).as_secs_f64(),
            seen,
        }),
        (Some(failure), ..) => Err(failure),
        (None, ..) => Err(Failure::Panicked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Producer = fn(&Course) -> Result<(), Failure>;
    type Consumer = fn(&Course) -> Result<Tally, Failure>;

    #[test]
    fn tallies_add_up() {
        let load = Load::pairs(64, 10, 2);
        let consumer: Consumer = |_| {
            Ok(Tally {
                packets: 5,
                checksum: 7,
            })
        };
        let run = race(
            &load,
            &|| {},
            vec![(|_| Ok(())) as Producer; 2],
            vec![consumer; 2],
        );
        let seen = run.map(|run| run.seen);
        assert_eq!(
            seen,
            Ok(Tally {
                packets: 10,
                checksum: 14
            })
        );
    }

    #[test]
    fn a_run_that_hangs_is_given_up() {
        let load = Load::pairs(64, 10, 1);
        let limit = Duration::from_millis(20);
        let consumer: Consumer = |course| {
            let mut looks = 0;
            loop {
                course.wait(&mut looks)?;
            }
        };
        let run = race_within(
            limit,
            &load,
            &|| {},
            vec![(|_| Ok(())) as Producer],
            vec![consumer],
        );
        assert_eq!(run, Err(Failure::Deadline { seconds: 0 }));
    }

    #[test]
    fn a_thread_that_fails_ends_the_others() {
        let load = Load::pairs(64, 10, 1);
        let producer: Producer = |_| Err(Failure::Lapped { packets: 1 });
        let consumer: Consumer = |course| {
            let mut looks = 0;
            loop {
                course.wait(&mut looks)?;
            }
        };
        let run = race(&load, &|| {}, vec![producer], vec![consumer]);
        assert_eq!(run, Err(Failure::Lapped { packets: 1 }));
        let producer: Producer = |_| panic!("on purpose");
        let run = race(&load, &|| {}, vec![producer], vec![consumer]);
        assert_eq!(run, Err(Failure::Panicked));
    }
}
