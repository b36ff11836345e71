//! How long a module of the examples takes for a packet, as the recorder itself reports it
//! (R-Scope, table 2 and figure 4).

use std::io;

use retroscope_recorder::{ProcessingHistogram, Scripts};
use retroscope_script::Script;

use super::{ONE_THREAD, Plan, frames, no_hit};
use crate::{
    measure::{Failure, check_count, check_lapped},
    queues::two_cores,
    session::{PartsRun, Session},
};

/// The module follows the times to live of each flow.
const MODULE: (&str, &str) = ("ttl", include_str!("../../../examples/modules/ttl.lua"));
/// Names of the classes of [`ProcessingHistogram::BELOW_NS`], in the same order.
const CLASSES: [&str; 8] = [
    "100ns", "1us", "10us", "100us", "1ms", "10ms", "100ms", "longer",
];
/// Frames of a run at full scale.
const FRAMES_PER_SECOND: f64 = 1e6;

/// The shares of the packets by processing time.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let (name, text) = MODULE;
    let run: PartsRun<'_, 8> = Box::new(|| {
        two_cores()?;
        let seconds = session.scale.time(1.0).as_secs_f64();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive and small"
        )]
        let count = (seconds * FRAMES_PER_SECOND) as u64;
        let plan = Plan {
            frames: frames(Some(count)),
            analyzers: ONE_THREAD,
            triggers: Vec::new(),
            scripts: Scripts {
                modules: vec![Script::new(name, text, false)],
                ..Scripts::default()
            },
            ..Plan::quiet(session.scale.ring_bytes.min(256 << 20))
        };
        let (summary, _) = plan.record(folder.path(), &mut no_hit)?;
        check_lapped(summary.lapped)?;
        check_count(count, summary.analyzed)?;
        let mut packets = [0; CLASSES.len()];
        for ProcessingHistogram { packets: some, .. } in summary.processing {
            packets
                .iter_mut()
                .zip(some)
                .for_each(|(all, some)| *all += some);
        }
        let timed: u64 = packets.iter().sum();
        if timed == 0 {
            return Err(Failure::Unsound("no packet was timed".to_owned()));
        }
        Ok(packets.map(|some| some as f64 / timed as f64 * 100.0))
    });
    let case = (format!("processing/{name}/"), run);
    session.measure_parts("processing times", CLASSES, vec![case])
}
