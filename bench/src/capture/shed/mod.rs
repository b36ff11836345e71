//! `make bench-shed`: what Suricata finds in the ring, with all shedding algorithms, with one
//! switched off at a time, and with none (R-Scope, figure 12). The cutoff is not one of R-Scope's
//! algorithms and sheds without overload too, so one recorder has it in addition.
//!
//! A slow script makes the recorder's analysis the bottleneck. The benchmark first finds the
//! loss-free rate of the recorder without shedding. Then packets arrive at several percentages of
//! this rate, for the same time at each rate. The ring has room for the packets of the loss-free
//! rate. After the packets have arrived, Suricata analyzes the packets that the ring still has. A
//! recorder with a larger ring and without the script gets the same packets: its connections and
//! events are 100 %.

mod lemma;
mod run;
mod size;
mod traffic;

use std::{collections::BTreeMap, io};

use self::run::{Lab, Outcome};
use crate::{
    measure::{Failure, Spread},
    say,
    session::{REPETITIONS, Session},
};

/// Offered rates, in percent of the loss-free rate.
const PERCENTS: [u32; 4] = [50, 100, 200, 400];
/// Rates above the loss-free rate, at which rows compare all algorithms with the recorder `none`.
const OVERLOADS: [u32; 2] = [200, 400];
/// Copies of the capture in the traffic of the highest rate.
const COPIES: u8 = 10;
/// Copies of the capture, and turns of each variant, in a brief run.
const BRIEF: (u8, usize) = (4, 1);
/// A scale with shorter runs than this is brief, in seconds.
pub(super) const BRIEF_BELOW: f64 = 0.25;

/// A recorder's configuration.
#[derive(Debug)]
struct Variant {
    /// Name, as in names of rows.
    name: &'static str,
    /// Arguments. `SHUNT` is the path of a module that shunts TLS.
    options: &'static str,
    /// The ring has room for all packets, the kernel's buffer has its default size, and no script
    /// is slow.
    is_lossless: bool,
}

const fn variant(name: &'static str, options: &'static str) -> Variant {
    Variant {
        name,
        options,
        is_lossless: false,
    }
}

const ALL: &str = "all";
const NONE: Variant = variant("none", "--set analyzers=inline");
const ONE_ANALYZER: Variant = variant("one analyzer", "--set analyzers=1");
const LOSSLESS: Variant = Variant {
    name: "no-loss",
    options: "--set analyzers=inline",
    is_lossless: true,
};
const VARIANTS: [Variant; 7] = [
    LOSSLESS,
    variant(ALL, "--set analyzers=1 --set ted=true --module SHUNT"),
    variant("no-ted", "--set analyzers=1 --module SHUNT"),
    variant("no-shunt", "--set analyzers=1 --set ted=true"),
    variant(
        "one-thread",
        "--set analyzers=inline --set ted=true --module SHUNT",
    ),
    variant(
        "cutoff",
        "--set analyzers=1 --cutoff 20KiB --set ted=true --module SHUNT",
    ),
    NONE,
];

/// The loss-free rate.
const RATE_ROW: &str = "shed/loss-free-rate";
/// Figures of a run, in percent: the last parts of the rows' names.
const FIGURES: [&str; 7] = [
    "events",
    "connections",
    "kernel",
    "shed",
    "cpu-sender",
    "cpu-recorder",
    "cpu-suricata",
];
/// Number of the first figure that [`LOSSLESS`] has too: its other figures are 0 or 100 %.
const FIRST_CPU: usize = 4;

/// The figures of each turn, in the order of [`FIGURES`], by variant and rate.
type Turns = BTreeMap<(&'static str, u32), Result<Vec<[f64; 7]>, Failure>>;

/// The rows of figures 3, 5 and 12.
pub(crate) fn judged(session: &Session) -> io::Result<()> {
    let (copies, turns) = if session.scale.seconds < BRIEF_BELOW {
        BRIEF
    } else {
        (COPIES, REPETITIONS.min(session.scale.repetitions))
    };
    lemma::rows(session, turns)?;
    size::rows(session, turns)?;
    let all = VARIANTS.iter().flat_map(|variant| {
        let cells = PERCENTS
            .iter()
            .flat_map(|percent| FIGURES.map(|figure| (percent, figure)));
        cells.map(move |(percent, figure)| name(variant.name, *percent, figure))
    });
    let ratios = OVERLOADS.iter().flat_map(|percent| {
        let figures = &FIGURES[..2];
        figures
            .iter()
            .map(move |figure| ratio_name(*percent, figure))
    });
    let mut names = all.chain(ratios).chain([RATE_ROW.to_owned()]);
    if !names.any(|name| session.wants(&name)) {
        return Ok(());
    }
    let lab = Lab::of_capture(session, copies);
    if let Err(Failure::CannotRun(why)) = &lab {
        say(&format!("SKIP: load shedding {why}"));
    }
    let rate = lab.as_ref().map_err(Clone::clone);
    let rate = rate.and_then(|lab| Ok((lab, lab.loss_free_rate(&NONE)?)));
    let spread = rate.as_ref().map(|(_, rate)| Spread::once(*rate));
    session.row(RATE_ROW, None, || spread.map_err(Clone::clone))?;
    let measured = match &rate {
        Ok((lab, rate)) => measure(session, turns, |variant, percent| {
            lab.run(variant, percent, *rate)
        }),
        Err(failure) => {
            let cell = |percent| ((ALL, percent), Err(failure.clone()));
            OVERLOADS.map(cell).into()
        }
    };
    put(session, &measured)
}

/// Runs each case that has a selected row in each turn, and writes its rows. A case begins with the
/// names of its rows, in the order of the figures of a run.
fn in_turns<C, const N: usize>(
    session: &Session,
    turns: usize,
    mut cases: Vec<([String; N], C)>,
    run: impl Fn(&C) -> Result<[f64; N], Failure>,
) -> io::Result<()> {
    cases.retain(|(names, _)| names.iter().any(|name| session.wants(name)));
    let mut measured: Vec<Result<Vec<[f64; N]>, Failure>> = vec![Ok(Vec::new()); cases.len()];
    for turn in 1..=turns {
        for ((names, case), measured) in cases.iter().zip(&mut measured) {
            let figures = run(case);
            say(&format!("turn {turn} of {turns}, {names:?}: {figures:?}"));
            match figures {
                Ok(figures) => measured.iter_mut().for_each(|turns| turns.push(figures)),
                Err(failure) => *measured = Err(failure),
            }
        }
    }
    for ((names, _), measured) in cases.iter().zip(measured) {
        for (at, name) in names.iter().enumerate() {
            session.row(name, None, || {
                let turns = measured.clone()?.into_iter();
                Spread::of(&turns.map(|figures| figures[at]).collect::<Vec<_>>())
            })?;
        }
    }
    Ok(())
}

fn name(variant: &str, percent: u32, figure: &str) -> String {
    format!("shed/{variant}/{percent}pc/{figure}")
}

fn ratio_name(percent: u32, figure: &str) -> String {
    format!("shed/{percent}pc/{figure}-vs-none")
}

/// Runs the variants that selected rows need, in turns at each rate.
fn measure(
    session: &Session,
    turns: usize,
    run: impl Fn(&Variant, u32) -> Result<Outcome, Failure>,
) -> Turns {
    let mut measured = Turns::new();
    for turn in 1..=turns {
        for percent in PERCENTS {
            let mut lossless = Err(Failure::Unsound("was not run".to_owned()));
            let has_ratio = FIGURES[..2]
                .iter()
                .any(|figure| session.wants(&ratio_name(percent, figure)));
            let is_wanted = |variant: &Variant| {
                let mut names = FIGURES.iter().map(|it| name(variant.name, percent, it));
                let is_compared = [ALL, NONE.name].contains(&variant.name);
                names.any(|name| session.wants(&name)) || has_ratio && is_compared
            };
            if !VARIANTS.iter().any(is_wanted) {
                continue;
            }
            for variant in &VARIANTS {
                if !variant.is_lossless && !is_wanted(variant) {
                    continue;
                }
                let outcome = run(variant, percent);
                say(&format!(
                    "turn {turn} of {turns}, {percent} %, {}: {outcome:?}",
                    variant.name
                ));
                if variant.is_lossless {
                    lossless = outcome.clone().and_then(without_loss);
                }
                let figures = outcome.and_then(|it| Ok(figures(&it, &lossless.clone()?)));
                let cell = measured.entry((variant.name, percent));
                let cell = cell.or_insert_with(|| Ok(Vec::new()));
                match figures {
                    Ok(figures) => cell.iter_mut().for_each(|turns| turns.push(figures)),
                    Err(failure) => *cell = Err(failure),
                }
            }
        }
    }
    measured
}

/// # Errors
/// [`Failure::Unsound`]: the run lost or shed packets.
fn without_loss(outcome: Outcome) -> Result<Outcome, Failure> {
    if outcome.kernel + outcome.shed == 0 {
        return Ok(outcome);
    }
    let Outcome { kernel, shed, .. } = outcome;
    let why = format!("the run without loss lost {kernel} packets and shed {shed}");
    Err(Failure::Unsound(why))
}

/// The figures of `outcome`, in the order of [`FIGURES`].
fn figures(outcome: &Outcome, lossless: &Outcome) -> [f64; 7] {
    let percent = |part: u64, of: u64| 100.0 * part as f64 / of as f64;
    [
        percent(outcome.events, lossless.events),
        percent(outcome.connections, lossless.connections),
        percent(outcome.kernel, outcome.sent),
        percent(outcome.shed, outcome.sent),
        outcome.sender_cpu,
        outcome.recorder_cpu,
        outcome.suricata_cpu,
    ]
}

/// Writes the rows.
fn put(session: &Session, measured: &Turns) -> io::Result<()> {
    let series = |variant: &'static str, percent, figure: usize| -> Result<Vec<f64>, Failure> {
        let none = Err(Failure::Unsound("was not run".to_owned()));
        let turns = measured.get(&(variant, percent)).unwrap_or(&none);
        let turns = turns.as_ref().map_err(Clone::clone)?;
        Ok(turns.iter().map(|turn| turn[figure]).collect())
    };
    for percent in OVERLOADS {
        for (at, figure) in FIGURES[..2].iter().enumerate() {
            session.row(&ratio_name(percent, figure), Some(NONE.name), || {
                let (all, none) = (series(ALL, percent, at)?, series(NONE.name, percent, at)?);
                let ratios = all.iter().zip(&none).map(|(all, none)| all / none);
                Spread::of(&ratios.collect::<Vec<_>>())
            })?;
        }
    }
    for variant in &VARIANTS {
        let first = if variant.is_lossless { FIRST_CPU } else { 0 };
        for (percent, (at, figure)) in PERCENTS.iter().flat_map(|percent| {
            FIGURES
                .iter()
                .enumerate()
                .skip(first)
                .map(move |it| (*percent, it))
        }) {
            if measured.contains_key(&(variant.name, percent)) {
                session.row(&name(variant.name, percent, figure), None, || {
                    Spread::of(&series(variant.name, percent, at)?)
                })?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, path::Path};

    use super::*;
    use crate::{
        measure::Scale,
        session::{Row, Selection, read},
    };

    /// The rows that a selection gets from runs with these events.
    fn rows(selection: &str, events: impl Fn(&str, u32) -> Result<u64, Failure>) -> Vec<Row> {
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path(), selection);
        let run = |variant: &Variant, percent| {
            Ok(Outcome {
                sent: 1000,
                kernel: 0,
                shed: 250 * u64::from(!variant.is_lossless),
                connections: 10,
                events: events(variant.name, percent)?,
                sender_cpu: 1.0,
                recorder_cpu: 2.0,
                suricata_cpu: 3.0,
            })
        };
        put(&session, &measure(&session, 3, run)).unwrap();
        read(folder.path()).unwrap()
    }

    pub(super) fn session(folder: &Path, selection: &str) -> Session {
        let scale = Scale {
            ring_bytes: 2 << 20,
            seconds: 0.001,
            repetitions: 3,
        };
        Session::start(folder, scale, Selection::parse(selection)).unwrap()
    }

    #[test]
    fn figures_are_shares_of_the_run_without_loss_at_the_same_rate() {
        let rows = rows("", |variant, percent| match (variant, percent) {
            ("no-ted", 400) => Err(Failure::Unsound("too slow".to_owned())),
            ("no-loss", _) => Ok(1000 * u64::from(percent)),
            ("all", _) => Ok(800 * u64::from(percent)),
            _ => Ok(200 * u64::from(percent)),
        });
        let row = |name: &str| rows.iter().find(|row| row.name == name);
        let value = |name| row(name).and_then(|row| row.value);
        assert_eq!(value("shed/all/50pc/events"), Some(80.0));
        assert_eq!(value("shed/none/400pc/events"), Some(20.0));
        assert_eq!(value("shed/400pc/events-vs-none"), Some(4.0));
        assert_eq!(value("shed/200pc/connections-vs-none"), Some(1.0));
        assert_eq!(value("shed/all/100pc/shed"), Some(25.0));
        assert_eq!(value("shed/no-loss/100pc/cpu-suricata"), Some(3.0));
        assert_eq!(row("shed/no-loss/100pc/events"), None);
        let failed = row("shed/no-ted/400pc/events").unwrap();
        assert_eq!(
            (failed.value, failed.versus.as_deref()),
            (None, Some("too slow"))
        );
        assert_eq!(rows.len(), 4 + 4 * (6 * FIGURES.len() + 3));
    }

    #[test]
    fn a_row_has_the_median_of_its_turns_or_the_failure_of_one() {
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path(), "shed/lemma,shed/queue/inline");
        let names =
            |case| ["kernel", "missed"].map(|part| format!("shed/lemma/{case}/inline/{part}"));
        let cases = vec![
            (names("case-1"), 1),
            (
                ["shed/queue/thread/8MiB", "shed/queue/thread/16MiB"].map(str::to_owned),
                2,
            ),
            (names("case-2"), 3),
        ];
        let calls = RefCell::new(Vec::new());
        in_turns(&session, 3, cases, |case| {
            calls.borrow_mut().push(*case);
            match calls.borrow().len() {
                6 => Err(Failure::Unsound("late".to_owned())),
                turn => Ok([turn as f64, 10.0 * turn as f64]),
            }
        })
        .unwrap();
        assert_eq!(calls.into_inner(), [1, 3, 1, 3, 1, 3], "only selected rows");
        let rows = read(folder.path()).unwrap();
        let values: Vec<_> = rows.iter().map(|row| row.value).collect();
        assert_eq!(values, [Some(3.0), Some(30.0), None, None]);
    }

    #[test]
    fn a_run_without_loss_that_lost_packets_is_no_reference() {
        let lossy = Outcome {
            sent: 9,
            kernel: 1,
            shed: 0,
            connections: 1,
            events: 1,
            sender_cpu: 0.0,
            recorder_cpu: 0.0,
            suricata_cpu: 0.0,
        };
        assert!(matches!(without_loss(lossy), Err(Failure::Unsound(_))));
    }

    #[test]
    fn a_selection_runs_only_what_its_rows_need() {
        let runs = RefCell::new(Vec::new());
        let rows = rows("shed/400pc/events-vs-none", |variant, percent| {
            runs.borrow_mut().push(format!("{variant} {percent}"));
            Ok(7)
        });
        assert_eq!(rows.len(), 1);
        let runs = runs.into_inner();
        assert_eq!(runs.len(), 9);
        assert_eq!(runs[..3], ["no-loss 400", "all 400", "none 400"]);
    }
}
