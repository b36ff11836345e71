//! How long a run is: as many packets as take a fraction of a second, and at least once around the memory.

use std::cell::RefCell;

use crate::{
    contest::{Contest, Failure, Load, Run},
    measure::Entrant,
    memory::Memory,
};

/// Bytes that a packet takes beside its own, in most contestants.
const OVERHEAD_BYTES: u64 = 16;

/// How much is measured. Tests measure less.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Bytes of the ring, and of the memory of the others.
    pub ring_bytes: u64,
    /// Seconds that a run should take.
    pub seconds: f64,
    /// Counted repetitions.
    pub repetitions: usize,
}

/// Finds the length of a run from the speed of the one before.
#[derive(Debug, Clone)]
pub struct Pace {
    least: u64,
    seconds: f64,
    per_second: Option<f64>,
}

impl Pace {
    /// For runs of `scale.seconds` that do `least` at the least.
    #[must_use]
    pub fn new(scale: &Scale, least: u64) -> Self {
        Self {
            least,
            seconds: scale.seconds,
            per_second: None,
        }
    }

    /// For packets of so many bytes: once around the ring at the least.
    #[must_use]
    pub fn of_packets(scale: &Scale, packet_bytes: usize) -> Self {
        Self::new(
            scale,
            scale.ring_bytes / (packet_bytes as u64 + OVERHEAD_BYTES),
        )
    }

    /// What to do in the next run.
    #[must_use]
    pub fn next(&self) -> u64 {
        let wanted = self
            .per_second
            .map_or(0.0, |per_second| per_second * self.seconds);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates; rates are positive"
        )]
        let wanted = wanted as u64;
        wanted.max(self.least)
    }

    /// What the last run did a second.
    pub fn was(&mut self, per_second: f64) {
        self.per_second = Some(per_second);
    }
}

/// A contestant that takes part in several comparisons, one after the other.
pub type Shared = RefCell<Box<dyn Contest>>;

/// A contestant at one size and number of threads, checked after each run; the figure is in Mpps.
pub fn entrant<'a>(
    contest: &'a Shared,
    name: impl Into<String>,
    memory: &'a RefCell<Memory>,
    load: Load,
    scale: &Scale,
) -> Entrant<'a> {
    let pace = Pace::of_packets(scale, load.packet_bytes);
    entrant_paced(contest, name, memory, load, pace)
}

/// The same, with runs of another length.
pub fn entrant_paced<'a>(
    contest: &'a Shared,
    name: impl Into<String>,
    memory: &'a RefCell<Memory>,
    load: Load,
    mut pace: Pace,
) -> Entrant<'a> {
    Entrant::new(name, move || {
        let load = Load {
            packets: pace.next(),
            ..load
        };
        let run = contest.borrow_mut().run(&load, &mut memory.borrow_mut())?;
        run.check(&load)?;
        pace.was(run.mpps() * 1e6);
        Ok(run.mpps())
    })
}

/// Stands for a contestant that could not be made.
#[derive(Debug)]
pub struct Broken(pub Failure);

impl Contest for Broken {
    fn name(&self) -> &str {
        "broken"
    }

    fn run(&mut self, _: &Load, _: &mut Memory) -> Result<Run, Failure> {
        Err(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use super::*;
    use crate::{contest::Tally, measure::interleave};

    /// Loses one packet in its third run.
    struct Leaky(Rc<Cell<u32>>);

    impl Contest for Leaky {
        fn name(&self) -> &str {
            "leaky"
        }

        fn run(&mut self, load: &Load, _memory: &mut Memory) -> Result<Run, Failure> {
            self.0.set(self.0.get() + 1);
            let mut seen: Tally = load.expected();
            if self.0.get() == 3 {
                seen.packets -= 1;
            }
            Ok(Run {
                seconds: 0.01,
                seen,
            })
        }
    }

    #[test]
    fn a_contestant_that_drops_a_packet_has_no_figure() {
        let scale = Scale {
            ring_bytes: 1 << 20,
            seconds: 0.001,
            repetitions: 4,
        };
        let memory = RefCell::new(Memory::new(1).unwrap());
        let runs = Rc::new(Cell::new(0));
        let leaky: Shared = RefCell::new(Box::new(Leaky(Rc::clone(&runs))));
        let load = Load::pairs(64, 0, 1);
        let heat = interleave(4, vec![entrant(&leaky, "leaky", &memory, load, &scale)]);
        assert!(matches!(
            heat.get("leaky").unwrap().figures,
            Err(Failure::Count { .. })
        ));
        assert_eq!(runs.get(), 3, "not run again");
    }

    #[test]
    fn a_run_is_as_long_as_it_should_be_but_no_less_than_a_lap() {
        let scale = Scale {
            ring_bytes: 80_000,
            seconds: 0.5,
            repetitions: 1,
        };
        let mut pace = Pace::of_packets(&scale, 64);
        assert_eq!(pace.next(), 1000);
        pace.was(10_000.0);
        assert_eq!(pace.next(), 5000);
        pace.was(10.0);
        assert_eq!(pace.next(), 1000);
    }
}
