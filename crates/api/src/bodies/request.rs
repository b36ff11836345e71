//! What triggers, rules, pins and queries ask for, as users write it.

use std::time::Duration;

use retroscope_capture::quantity;
use retroscope_recorder::{Handle, Stretch, SubDirectory, TriggerRequest, parse_time};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use crate::{caller::Caller, problem::Problem};

/// A body with what triggers and rules ask for alike. (Neither serde nor OpenAPI can flatten one struct into another and refuse unknown fields.)
macro_rules! with_window {
    ($(#[$of_all:meta])* $name:ident { $($(#[$of_field:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$of_all])*
        #[derive(Debug, Clone, Default, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $($(#[$of_field])* pub(crate) $field: $type,)*
            /// Time before the trigger: `250ms`, `10s`, `5m`. Left out, as the recorder was started.
            #[schema(example = "10s", pattern = r"^[0-9]{1,9}(\.[0-9]{1,9})?(ns|us|ms|s|m|min|h)?$")]
            pub(crate) past: Option<String>,
            /// Time after the trigger.
            #[schema(example = "5s", pattern = r"^[0-9]{1,9}(\.[0-9]{1,9})?(ns|us|ms|s|m|min|h)?$")]
            pub(crate) future: Option<String>,
            /// A dump ends when it has so many packets; 0: without limit.
            pub(crate) packets: Option<u64>,
            /// A dump ends with the packet by which it has so many captured bytes; 0: without limit.
            pub(crate) bytes: Option<u64>,
            /// Where files go: a directory of this name below that of the dumps.
            #[schema(example = "voip", pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$")]
            pub(crate) into: Option<String>,
            /// Who asks, for the report and the sidecar; left out, the token's name.
            #[schema(max_length = 256)]
            pub(crate) asked_by: Option<String>,
        }

        impl $name {
            /// All that but what is dumped.
            pub(crate) fn window(&self, caller: &Caller) -> Result<TriggerRequest, Problem> {
                let time = |text: &Option<String>| text.as_deref().map(duration).transpose();
                let into = self.into.as_deref().map(SubDirectory::new).transpose();
                let asked_by = self.asked_by.clone();
                Ok(TriggerRequest {
                    past: time(&self.past)?,
                    future: time(&self.future)?,
                    packets_max: self.packets,
                    bytes_max: self.bytes,
                    dump: None,
                    into: into.map_err(Problem::malformed)?,
                    asked_by: Some(asked_by.unwrap_or_else(|| caller.name.to_string())),
                    ..TriggerRequest::default()
                })
            }
        }
    };
}

with_window! {
    /// A trigger by hand.
    TriggerBody {
        /// What is dumped, a pcap-filter(7) expression; empty: everything. Left out, as the recorder was started.
        #[schema(example = "udp port 53")]
        filter: Option<String>,
    }
}

with_window! {
    /// A trigger rule as it is to be.
    RulePut {
        /// Packets that trigger, a pcap-filter(7) expression.
        #[schema(example = "tcp[tcpflags] & tcp-rst != 0")]
        expression: String,
        /// What is dumped: a template in the place of `--dump`.
        #[schema(example = "host $srcIP")]
        dump: Option<String>,
        /// Whether its matches are hits; left out, as it is, and of a new rule true.
        enabled: Option<bool>,
        /// After the window of one of its dumps, time in which the same dump expression starts no other.
        #[schema(example = "1m", pattern = r"^[0-9]{1,9}(\.[0-9]{1,9})?(ns|us|ms|s|m|min|h)?$")]
        hold_off: Option<String>,
        /// Its dumps open at once, within what all rules share; 0, as left out: without a limit of its own.
        max_dumps: Option<u64>,
        /// Its dumps started in any minute.
        dumps_per_minute: Option<u64>,
        /// Bytes that its dumps wrote in the last hour before no further one is started.
        bytes_per_hour: Option<u64>,
    }
}

impl RulePut {
    /// What the rule asks for of its own.
    pub(crate) fn request(&self, caller: &Caller) -> Result<TriggerRequest, Problem> {
        Ok(TriggerRequest {
            dump: self.dump.clone(),
            hold_off: self.hold_off.as_deref().map(duration).transpose()?,
            max_dumps: self.max_dumps,
            dumps_per_minute: self.dumps_per_minute,
            bytes_per_hour: self.bytes_per_hour,
            ..self.window(caller)?
        })
    }
}

/// A stretch of time. Nothing: all that is there.
#[derive(Debug, Clone, Default, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StretchBody {
    /// Packets from this time on: RFC 3339 with any offset, or s, ms, µs or ns since 1970.
    #[schema(example = "2026-11-20T19:15:03.5Z")]
    #[param(example = "2026-11-20T19:15:03.5Z")]
    pub(crate) from: Option<String>,
    /// Packets up to this time, included.
    pub(crate) to: Option<String>,
    /// Packets of this long, up to now; without `from` and `to`.
    #[schema(example = "30s")]
    #[param(example = "30s")]
    pub(crate) last: Option<String>,
}

impl StretchBody {
    pub(crate) fn read(&self) -> Result<Stretch, Problem> {
        let at = |text: &Option<String>| text.as_deref().map(time).transpose();
        let last = self.last.as_deref().map(duration).transpose()?;
        let stretch = Stretch {
            from_ns: at(&self.from)?,
            to_ns: at(&self.to)?,
            last_ns: last.map(|last| i64::try_from(last.as_nanos()).unwrap_or(i64::MAX)),
        };
        if last.is_some() && (self.from.is_some() || self.to.is_some()) {
            return Err(Problem::malformed(
                "`last` stands alone, without `from` and `to`",
            ));
        }
        let ends = stretch.from_ns.zip(stretch.to_ns);
        if ends.is_some_and(|(from, to)| from > to) {
            return Err(Problem::malformed("`to` is before `from`"));
        }
        Ok(stretch)
    }
}

/// A duration as users write it.
pub(crate) fn duration(text: &str) -> Result<Duration, Problem> {
    quantity::duration(text).ok_or_else(|| {
        Problem::malformed(format!(
            "{text:?} is not a duration: write it like 250ms, 10s, 5m or 2h"
        ))
    })
}

/// A time as users write it, ns since the UNIX epoch.
fn time(text: &str) -> Result<i64, Problem> {
    parse_time(text).map_err(Problem::malformed)
}

/// An expression that takes what was asked for, of what this caller may see. Each stands in parentheses, and what was asked compiles by itself: so it cannot
/// end the other's.
pub(crate) fn within(
    handle: &Handle,
    caller: &Caller,
    asked: Option<String>,
) -> Result<Option<String>, Problem> {
    let Some(own) = &caller.filter else {
        return Ok(asked);
    };
    let asked = asked.unwrap_or_default();
    if asked.trim().is_empty() {
        return Ok(Some(own.to_string()));
    }
    handle.check_expression(&asked)?;
    Ok(Some(format!("({own}) and ({asked})")))
}
