//! The highest rate at which an engine loses no packet, by packet size (FlowScope, figure 4; QQ
//! thesis, table 3.1). The sender's CPU does the kernel's work of receiving, so that only the
//! program's buffers can overflow.

use std::{env, fs, io, os::unix::fs::symlink};

use super::{BRIEF_BELOW, ENGINES, Engine, Lab, Outcome, other};
use crate::{
    measure::{Failure, Figure, Spread},
    session::Session,
    thesis::enough_cores,
};

const SIZES: [u32; 6] = [64, 128, 256, 512, 1024, 1514];
/// The search begins between the sender's highest rate and this rate divided by [`RANGE`].
const RANGE: f64 = 16.0;
/// Steps of the search, and how often it sends again at a rate that was not kept. The second pair
/// is for brief runs.
const EFFORT: [(u32, u32); 2] = [(5, 1), (3, 0)];
/// A sender that sends less than this part of a rate does not reach the rate.
const REACHED: f64 = 0.97;

/// Runs the program in `TIMEMACHINE`, and prints the last line of its log after SIGINT. Time
/// Machine logs its counters once a second. It captures with libpcap's default buffer.
const TIME_MACHINE_SCRIPT: &str = r#"cd "$1" || exit
rm -f stats.timemachine.log
setpriv --pdeathsig TERM "$2" -i v1 -c time-machine.cfg </dev/null >&2 &
program=$!
trap : INT
wait $program
sleep 1.5
kill -TERM $program
wait $program
tail -n 1 stats.timemachine.log
"#;
/// One class for all packets, in memory and then in a file, without a cutoff and without indexes.
const TIME_MACHINE_CONFIG: &str = r#"main {
workdir "FOLDER";
queryfiledir "FOLDER";
indexdir "FOLDER";
logfile "timemachine.log";
log_interval 1;
console 0;
rmtconsole 0;
bro_listen 0;
daemon 0;
}
class "all" {
filter "";
precedence 1;
cutoff no;
disk 64m;
filesize 32m;
mem 256m;
}
"#;

const TIME_MACHINE: &str = "time-machine";
/// Other programs, which have no other rows.
static OTHERS: [Engine; 2] = [
    other(
        "dumpcap",
        "dumpcap -q -i v1 -w FILE",
        "File: ",
        counts_of_dumpcap,
    ),
    other(
        TIME_MACHINE,
        // A shell cannot trap a signal that it ignores since its start, as in the background.
        "env --default-signal=INT sh FOLDER/time-machine.sh FOLDER FOLDER/time-machine",
        "capture started",
        counts_of_time_machine,
    ),
];

/// The result of a load at one rate.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Attempt {
    /// Nothing was lost at this rate.
    Kept(f64),
    Lost,
    /// Nothing was lost, but the sender did not reach the rate.
    Late,
}

pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let mut lab = None;
    for (size, engine) in SIZES
        .iter()
        .flat_map(|size| ENGINES.iter().chain(&OTHERS).map(move |it| (*size, it)))
    {
        session.row(&format!("lossless/{}/{size}B", engine.name), None, || {
            let lab = lab.get_or_insert_with(|| {
                enough_cores(2, false)?;
                Lab::new(&session.programs, 1, false)
            });
            let lab = lab.as_ref().map_err(|why| why.clone())?;
            if engine.name == TIME_MACHINE {
                prepare_time_machine(lab)?;
            }
            highest(session, lab, engine, size)
        })?;
    }
    Ok(())
}

/// Writes the script and the configuration of Time Machine.
///
/// # Errors
/// [`Failure::CannotRun`]: `TIMEMACHINE` is not set. [`Failure::Wrong`]: a file or a link fails.
fn prepare_time_machine(lab: &Lab) -> Result<(), Failure> {
    let program = env::var_os("TIMEMACHINE").ok_or_else(|| {
        let why = "TIMEMACHINE=PROGRAM names a Time Machine, which Debian has no package of";
        Failure::CannotRun(why.to_owned())
    })?;
    let folder = lab.folder.path();
    let link = folder.join(TIME_MACHINE);
    let _ = fs::remove_file(&link);
    let linked = fs::canonicalize(program).and_then(|program| symlink(program, link));
    linked.map_err(|error| Failure::system("TIMEMACHINE", error))?;
    let config = TIME_MACHINE_CONFIG.replace("FOLDER", &folder.display().to_string());
    for (name, text) in [
        ("time-machine.sh", TIME_MACHINE_SCRIPT),
        ("time-machine.cfg", &config),
    ] {
        let written = fs::write(folder.join(name), text);
        written.map_err(|error| Failure::system(name, error))?;
    }
    Ok(())
}

/// dumpcap's counts: packets that it received, and packets that the kernel or dumpcap dropped.
fn counts_of_dumpcap(_stdout: &str, stderr: &str) -> Option<(u64, u64)> {
    let line = stderr
        .lines()
        .find(|line| line.starts_with("Packets received/dropped on interface"))?;
    let (_, counts) = line.rsplit_once("': ")?;
    let (captured, lost) = counts.split(' ').next()?.split_once('/')?;
    Some((captured.parse().ok()?, lost.parse().ok()?))
}

/// The counts in the last line of Time Machine's log. The fourth word is libpcap's number of
/// received packets; the fifth word says how many of these the kernel dropped.
fn counts_of_time_machine(stdout: &str, _stderr: &str) -> Option<(u64, u64)> {
    let mut words = stdout.lines().last()?.split_whitespace().skip(3);
    let mut count = || words.next()?.parse::<u64>().ok();
    let (received, lost) = (count()?, count()?);
    Some((received.checked_sub(lost)?, lost))
}

/// The highest rate without loss, in Mpps.
fn highest(session: &Session, lab: &Lab, engine: &Engine, size: u32) -> Result<Figure, Failure> {
    let (steps, again) = EFFORT[usize::from(session.scale.seconds < BRIEF_BELOW)];
    let time = session.scale.time(1.0);
    let run = |rate| lab.run(engine, size, time, rate);
    let flood = run(0.0)?;
    let (mpps, is_bound) = if flood.lost == 0 {
        (flood.mpps(), true)
    } else {
        search(flood.mpps(), steps, |mpps| {
            let mut attempt = judged(&run(mpps * 1e6)?, mpps);
            for _ in 0..again {
                if !matches!(attempt, Attempt::Kept(_)) {
                    attempt = judged(&run(mpps * 1e6)?, mpps);
                }
            }
            Ok(attempt)
        })?
    };
    Ok(Figure {
        spread: Spread::once(mpps),
        remark: is_bound.then(|| "the sender's highest rate".to_owned()),
    })
}

fn judged(outcome: &Outcome, mpps: f64) -> Attempt {
    match outcome.lost {
        0 if outcome.mpps() >= REACHED * mpps => Attempt::Kept(outcome.mpps()),
        0 => Attempt::Late,
        _ => Attempt::Lost,
    }
}

/// The highest rate that was kept, by geometric bisection below `most`, and whether the sender was
/// too slow for the next higher rate that was tried.
///
/// # Errors
/// [`Failure::Unsound`]: no rate was kept. Failures of `attempt` are returned too.
fn search(
    most: f64,
    steps: u32,
    mut attempt: impl FnMut(f64) -> Result<Attempt, Failure>,
) -> Result<(f64, bool), Failure> {
    let (mut low, mut high) = (most / RANGE, most);
    let (mut kept, mut is_late) = (None, false);
    for _ in 0..steps {
        let rate = (low * high).sqrt();
        match attempt(rate)? {
            Attempt::Kept(reached) => (low, kept) = (rate, Some(reached)),
            failed => (high, is_late) = (rate, failed == Attempt::Late),
        }
    }
    let none = || Failure::Unsound(format!("no rate without loss down to {high:.3} Mpps"));
    Ok((kept.ok_or_else(none)?, is_late))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_other_programs_are_found() {
        let dumpcap = "Packets captured: 7\nPackets received/dropped on interface 'v1': 7/2 (pcap:2/dumpcap:0/flushed:0/ps_ifdrop:0) (77.8%)\n";
        assert_eq!(counts_of_dumpcap("", dumpcap), Some((7, 2)));
        assert_eq!(counts_of_dumpcap("", "no permission"), None);
        let log = "1.00 0 0 0 0 0.00% 0 0\n1796076401.12 4 1 9 2 28.57% 2 7 448 0.00 \n";
        assert_eq!(counts_of_time_machine(log, ""), Some((7, 2)));
        assert_eq!(counts_of_time_machine("", ""), None);
    }

    #[test]
    fn the_search_finds_the_highest_rate_that_is_kept() {
        let find = |bound: f64, late: f64| {
            search(16.0, 8, |rate| {
                Ok(match rate {
                    rate if rate > bound => Attempt::Lost,
                    rate if rate > late => Attempt::Late,
                    rate => Attempt::Kept(rate),
                })
            })
        };
        for bound in [1.2, 3.0, 7.7, 15.9] {
            let (rate, is_late) = find(bound, 16.0).unwrap();
            assert!(rate <= bound && rate > 0.98 * bound && !is_late, "{rate}");
        }
        let (rate, is_late) = find(16.0, 5.0).unwrap();
        assert!(rate <= 5.0 && rate > 4.9 && is_late, "{rate}");
        assert!(matches!(find(1.0, 16.0), Err(Failure::Unsound(_))));
    }

    #[test]
    fn a_rate_counts_if_it_was_reached_without_loss() {
        let run = |sent, lost| Outcome {
            sent,
            captured: sent - lost,
            lost,
            seconds: 1.0,
        };
        assert_eq!(judged(&run(980_000, 0), 1.0), Attempt::Kept(0.98));
        assert_eq!(judged(&run(960_000, 0), 1.0), Attempt::Late);
        assert_eq!(judged(&run(1_000_000, 1), 1.0), Attempt::Lost);
    }
}
