//! Keys about flows: tracking, time-outs, and EVE lines.

use std::time::Duration;

use retroscope_flow::{TimeOuts, TrackerConfig};

use super::config::{Fragments, Settings, Vlans};
use crate::{eve::Options, failure::Failure};

/// Maximum number of flows that are tracked at the same time, if `max-flows` is not given.
const FLOWS_MAX: u32 = 1_000_000;

impl Settings {
    /// Refuses keys about flows that have no effect: `community-id-seed` needs --eve, other keys
    /// need --eve or modules (`are_modules`).
    pub(crate) fn refuse_flows_without_use(&self, are_modules: bool) -> Result<(), Failure> {
        let of_lines = [("community-id-seed", self.community_id_seed.is_some())];
        let of_flows = [
            ("idle-timeout", self.idle_timeout.is_some()),
            ("fragments", self.fragments.is_some()),
            ("vlans", self.vlans.is_some()),
            ("max-flows", self.max_flows.is_some()),
        ];
        let of_flows = of_flows.iter().filter(|_| !are_modules);
        match of_lines
            .iter()
            .chain(of_flows)
            .find(|(_, is_given)| *is_given)
        {
            Some((option, _)) if self.eve.is_none() => Err(Failure::usage(format!(
                "{option} needs --eve FILE, which writes flows"
            ))),
            _ => Ok(()),
        }
    }

    /// Configuration of the flow tracker.
    pub(crate) fn tracker(&self) -> TrackerConfig {
        let idle_ns = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let time_outs = self.idle_timeout.map(|time| TimeOuts::idle(idle_ns(*time)));
        TrackerConfig {
            flows_max: self.max_flows.map_or(FLOWS_MAX, |it| it.0.0) as usize,
            time_outs: time_outs.unwrap_or_default(),
            has_vlans: self.vlans != Some(Vlans::Together),
            joins_fragments: self.fragments != Some(Fragments::Apart),
            top: None,
        }
    }

    /// Options of the EVE writer. When reading files, the writer waits for its reader without
    /// limit.
    pub(crate) fn eve_options(&self, offline: bool) -> Options {
        let default = Options::default();
        let seed = self.community_id_seed.map(|it| it.0.0);
        let community_id_seed = seed.and_then(|it| it.try_into().ok()).unwrap_or_default();
        Options {
            community_id_seed,
            patience: default.patience.filter(|_| !offline),
            ..default
        }
    }
}
