//! Everything else that `make bench` measures: the evaluation of the thesis, reproduced and extended.
//!
//! | module | rows | thesis | paper |
//! |---|---|---|---|
//! | `memory` | `limits/…` | figure 7.2 (STREAM) | figure 6 |
//! | `queues` | `queue/…` | figures 4.1, 7.1, 7.2 | figures 6, 7 |
//! | `buckets` | `bucket/…`, `bucket-qq2016/…` | figure 7.4 | V-C |
//! | `outer` | `outer/…` | figure 7.5 | table I |
//! | `distance` | `guard/…` | figure 7.6 | V-D |
//! | `rates` | `latency/…` | section 7.5, table 7.4 | V-D |
//! | `ablation` | `ablation/…` | | |
//! | `filter` | `filter-ns/…`, `filter-compile/…`, `filter-together/…`, `filter-rules/…` | future work (JIT filter expressions) | |

mod ablation;
mod buckets;
mod distance;
mod filter;
mod memory;
mod outer;
mod queues;
mod rates;

use std::cell::RefCell;

use crate::{
    contest::{Contest, Failure, Load},
    measure::{Entrant, interleave},
    pace::{Pace, Scale, Shared, entrant_paced},
    pin,
    session::{Session, SessionError, say},
};

/// Sizes of packets: those of the thesis and the paper.
const SIZES: [usize; 6] = [64, 128, 256, 512, 1024, 1514];
/// Turns of each contestant here; the judged rows take more.
const REPETITIONS: usize = 3;
/// How much of a lap a slow way to use a queue must do at least.
const PART_OF_LAP: u64 = 64;

/// Measures all of it.
///
/// # Errors
/// [`SessionError::Results`]: the results cannot be written. What cannot be measured is a row.
pub fn run(session: &mut Session) -> Result<(), SessionError> {
    memory::run(session)?;
    ablation::run(session)?;
    distance::run(session)?;
    buckets::run(session)?;
    outer::run(session)?;
    rates::run(session)?;
    filter::run(session)?;
    queues::run(session)
}

/// How many producers, each with a consumer: 1, 2, and half the cores.
fn pairs() -> Vec<usize> {
    let mut pairs = vec![1, 2];
    let most = pin::cores() / 2;
    if most > 2 {
        pairs.push(most);
    }
    pairs.retain(|&pairs| pairs <= pin::cores());
    pairs
}

/// A contestant and the row that its figures go to.
struct Start<'a> {
    row: String,
    contest: &'a Shared,
    load: Load,
    /// It must go around its memory at least once.
    whole_lap: bool,
}

/// Runs contestants in turns, and writes a row for each, in Mpps.
fn compare(session: &mut Session, starts: Vec<Start<'_>>) -> Result<(), SessionError> {
    let scale = session.scale();
    let heat = {
        let memory = session.memory();
        let entrants = starts
            .iter()
            .filter(|start| session.wants(&start.row))
            .map(|start| {
                let pace = if start.whole_lap {
                    Pace::of_packets(&scale, start.load.packet_bytes)
                } else {
                    let part = Scale {
                        ring_bytes: scale.ring_bytes / PART_OF_LAP,
                        ..scale
                    };
                    Pace::of_packets(&part, start.load.packet_bytes)
                };
                entrant_paced(start.contest, start.row.as_str(), memory, start.load, pace)
            });
        interleave(REPETITIONS.min(scale.repetitions), entrants.collect())
    };
    for series in heat.series() {
        session.absolute(&series.name, "Mpps", series.spread())?;
    }
    Ok(())
}

/// Runs closures in turns, and writes a row for each.
fn measure(
    session: &mut Session,
    unit: &str,
    entrants: impl for<'a> FnOnce(&'a Session) -> Vec<Entrant<'a>>,
) -> Result<(), SessionError> {
    let repetitions = REPETITIONS.min(session.scale().repetitions);
    let heat = interleave(repetitions, entrants(session));
    for series in heat.series() {
        session.absolute(&series.name, unit, series.spread())?;
    }
    Ok(())
}

/// Makes a contestant to be shared, or one that tells why it could not be made.
fn shared<C: Contest + 'static>(contest: Result<C, Failure>) -> Shared {
    match contest {
        Ok(contest) => RefCell::new(Box::new(contest)),
        Err(failure) => {
            say(&format!("not made: {failure}"));
            RefCell::new(Box::new(crate::pace::Broken(failure)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::{Row, Selection};

    fn rows_of(selection: &str) -> Vec<Row> {
        let folder = tempfile::tempdir().unwrap();
        let scale = Scale {
            ring_bytes: 32 << 20,
            seconds: 0.001,
            repetitions: 1,
        };
        let mut session =
            Session::start(folder.path(), scale, Selection::parse(selection)).unwrap();
        run(&mut session).unwrap();
        let rows = session.results().rows().to_vec();
        assert!(!session.results().failed(), "{rows:?}");
        rows
    }

    /// Names stand for themselves: tables and figures look for them.
    #[test]
    fn the_rows_of_the_thesis_are_there_and_none_fails() {
        let rows = rows_of(
            "limits,ablation,guard,bucket/2MiB,bucket-qq2016/2MiB,outer,queue/ring,queue/qq2016,filter-ns,filter-compile,filter-together,filter-rules",
        );
        for name in [
            "limits/nt-fill/1t",
            "limits/copy/1t",
            "limits/memcpy-insert/64B",
            "limits/raw-insert/1514B",
            "ablation/0-qq2016",
            "ablation/4-descriptor-groups",
            "ablation/6-bursts",
            "guard/qq2016/1",
            "guard/ring/0",
            "bucket/2MiB/64B",
            "bucket-qq2016/2MiB/64B",
            "outer/qq2016/1t",
            "outer/ring/1t",
            "queue/ring/64B/1p1c/well",
            "queue/qq2016/1514B/1p1c/well",
            "filter-ns/udp-port/handwritten",
            "filter-ns/100-hosts/interpreter",
            "filter-compile/100-hosts/native",
            "filter-rules/mixed/10000",
        ] {
            let row = rows.iter().find(|row| row.name == name);
            assert!(
                row.is_some_and(|row| row.value.is_some() || pin::cores() == 1),
                "{name}: {row:?}"
            );
        }
        let mut names: Vec<_> = rows.iter().map(|row| &row.name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "each once");
    }
}
