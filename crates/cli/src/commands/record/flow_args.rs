//! The arguments about flows, and where they are told.

use std::{num::NonZeroU32, time::Duration};

use clap::ValueEnum;
use retroscope_flow::{TimeOuts, TrackerConfig};

use crate::{
    eve::{Options, Target},
    failure::Failure,
    units,
};

/// Flows that are counted at once where `--max-flows` does not say.
const FLOWS_MAX: u32 = 1_000_000;

/// How flows are told apart, when they end, and where they are told.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct FlowArgs {
    /// Write flows that ended, and what this program does, as lines of EVE JSON: appended to FILE, to stdout (`-`), or to the stream socket
    /// `unix:PATH`, at which another program listens
    #[arg(long, value_name = "TARGET")]
    pub(crate) eve: Option<Target>,

    /// Rename the file of --eve to FILE.1 before it would be larger than this, like 100MiB. A service opens it again at SIGHUP, too
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    eve_rotate: Option<u64>,

    /// How many renamed files --eve-rotate keeps [default: 5]
    #[arg(long, value_name = "N", requires = "eve_rotate")]
    eve_keep: Option<NonZeroU32>,

    /// Seed of Community IDs [default: 0]
    #[arg(long, value_name = "N")]
    community_id_seed: Option<u16>,

    /// End each flow when no packet came for this; 0: never, so that a key has one flow [default: Suricata's time-outs by protocol and state]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    idle_timeout: Option<Duration>,

    /// Whether later fragments are of the flow of their first one, or of none [default: join]
    #[arg(long, value_enum, value_name = "HOW")]
    fragments: Option<Fragments>,

    /// Whether packets with different VLAN identifiers are of different flows [default: apart]
    #[arg(long, value_enum, value_name = "HOW")]
    vlans: Option<Vlans>,

    /// Flows counted at once; where more would begin, those that would end first end [default: 1000000, of 400 bytes at most each]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    max_flows: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Fragments {
    /// Of the flow of their first fragment
    Join,
    /// Of none
    Apart,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Vlans {
    /// Of different flows
    Apart,
    /// Of one
    Together,
}

impl FlowArgs {
    /// Says which option has no meaning where there is no --eve, nor a --module.
    pub(crate) fn refuse_without_use(&self, are_modules: bool) -> Result<(), Failure> {
        let of_lines = [
            ("--eve-rotate", self.eve_rotate.is_some()),
            ("--community-id-seed", self.community_id_seed.is_some()),
        ];
        let of_flows = [
            ("--idle-timeout", self.idle_timeout.is_some()),
            ("--fragments", self.fragments.is_some()),
            ("--vlans", self.vlans.is_some()),
            ("--max-flows", self.max_flows.is_some()),
        ];
        let of_flows = of_flows.iter().filter(|_| !are_modules);
        match of_lines
            .iter()
            .chain(of_flows)
            .find(|(_, is_given)| *is_given)
        {
            Some((option, _)) if self.eve.is_none() => Err(Failure::usage(format!(
                "{option} is about flows, which are told by --eve: say --eve FILE too"
            ))),
            _ => self.refuse_rotation(),
        }
    }

    /// Says that only a file can be renamed.
    pub(crate) fn refuse_rotation(&self) -> Result<(), Failure> {
        match &self.eve {
            Some(target @ (Target::Stdout | Target::Unix(_))) if self.eve_rotate.is_some() => {
                Err(Failure::usage(format!(
                    "--eve-rotate renames a file: --eve {target} is none"
                )))
            }
            _ => Ok(()),
        }
    }

    /// How flows are counted.
    pub(crate) fn tracker(&self) -> TrackerConfig {
        let idle_ns = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let time_outs = self.idle_timeout.map(|time| TimeOuts::idle(idle_ns(time)));
        TrackerConfig {
            flows_max: self.max_flows.unwrap_or(FLOWS_MAX) as usize,
            time_outs: time_outs.unwrap_or_default(),
            has_vlans: self.vlans != Some(Vlans::Together),
            joins_fragments: self.fragments != Some(Fragments::Apart),
            top: None,
        }
    }

    /// How lines are written. From files they wait for whoever takes them.
    pub(crate) fn options(&self, offline: bool) -> Options {
        let default = Options::default();
        Options {
            community_id_seed: self.community_id_seed.unwrap_or_default(),
            rotate_bytes: self.eve_rotate,
            keep: self.eve_keep.unwrap_or(default.keep),
            patience: default.patience.filter(|_| !offline),
            ..default
        }
    }
}
