//! Window, limits and output of a trigger or a rule, as arguments and for the API.

use std::time::Duration;

use retroscope_recorder::{RetentionLimit, SubDirectory};
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value};

use super::{
    record::keep,
    stretch::{WithText, length},
};
use crate::units::size_or_none;

/// Options of a trigger or a rule. The recorder's configuration applies for options that are not
/// given.
#[derive(Debug, Serialize, clap::Args)]
pub(crate) struct WindowArgs {
    /// Dump packets up to TIME before the trigger
    #[arg(long, value_name = "TIME", value_parser = length)]
    past: Option<WithText<Duration>>,

    /// Dump packets up to TIME after the trigger
    #[arg(long, value_name = "TIME", value_parser = length)]
    future: Option<WithText<Duration>>,

    /// Stop the dump after N packets; 0: no limit
    #[arg(long, value_name = "N")]
    packets: Option<u64>,

    /// Stop the dump after SIZE of captured data, like 100MiB; 0: no limit
    #[arg(long, value_name = "SIZE", value_parser = size_or_none)]
    bytes: Option<u64>,

    /// Dump the packets that match FILTER, like --dump of `record`. A trigger without a trigger
    /// packet cannot use names like $flow
    #[arg(long, value_name = "FILTER")]
    dump: Option<String>,

    /// Write the files to this subdirectory of the dump directory, and create a missing
    /// subdirectory
    #[arg(long, value_name = "NAME", value_parser = directory)]
    into: Option<WithText<SubDirectory>>,

    /// Name the user or program that requests the dump, for the report and the sidecar (at most 256
    /// characters)
    #[arg(long, value_name = "TEXT")]
    asked_by: Option<String>,
}

/// Options that only a rule has.
#[derive(Debug, Serialize, clap::Args)]
pub(crate) struct LimitsArgs {
    /// Dump these packets for an alert of Prometheus' Alertmanager that names the rule. Labels of
    /// the alert fill in TEMPLATE, as 'host {instance}' (docs/alerts.md)
    #[arg(long, value_name = "TEMPLATE")]
    alert_dump: Option<String>,

    /// Start no new dump of the rule for the same filled-in dump expression until TIME after the
    /// previous dump's window [default: as --hold-off of record]
    #[arg(long, value_name = "TIME", value_parser = length)]
    hold_off: Option<WithText<Duration>>,

    /// Keep at most N dumps of the rule open at once, within the recorder's key max-dumps; 0: only
    /// that key limits the rule
    #[arg(long, value_name = "N")]
    max_dumps: Option<u64>,

    /// Start at most N dumps of the rule in any minute, within the recorder's key dumps-per-minute;
    /// 0: only that key limits the rule
    #[arg(long, value_name = "N")]
    dumps_per_minute: Option<u64>,

    /// Start no dump of the rule while its dumps wrote SIZE in the last hour, like 1GiB, within the
    /// recorder's key bytes-per-hour; 0: only that key limits the rule
    #[arg(long, value_name = "SIZE", value_parser = size_or_none)]
    bytes_per_hour: Option<u64>,

    /// Keep at most SIZE of the rule's dumps, and each for at most TIME, as 10GiB,7d, within --keep
    /// of record
    #[arg(long, value_name = "SIZE,TIME", value_parser = keep)]
    #[serde(flatten, serialize_with = "keep_fields")]
    keep: Option<RetentionLimit>,
}

fn directory(text: &str) -> Result<WithText<SubDirectory>, String> {
    WithText::read(text, SubDirectory::new)
}

/// The given fields, in the form of the API.
pub(crate) fn fields(of: &impl Serialize) -> Map<String, Value> {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(of) else {
        return Map::new();
    };
    fields.retain(|_, value| !value.is_null());
    fields
}

/// Writes `keep` as the API's two fields.
fn keep_fields<S: Serializer>(keep: &Option<RetentionLimit>, out: S) -> Result<S::Ok, S::Error> {
    let RetentionLimit { bytes, age } = keep.unwrap_or_default();
    let mut fields = out.serialize_map(None)?;
    fields.serialize_entry("keep_bytes", &bytes)?;
    let age = age.map(|age| format!("{}s", age.as_secs()));
    fields.serialize_entry("keep_age", &age)?;
    fields.end()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct RuleArgs {
        #[command(flatten)]
        window: WindowArgs,
        #[command(flatten)]
        limits: LimitsArgs,
    }

    #[test]
    fn a_rule_is_written_for_the_api() {
        let words =
            "x --past 2s --bytes 1KiB --into a --max-dumps 3 --bytes-per-hour 0 --keep 1KiB,2d";
        let RuleArgs { window, limits } = RuleArgs::parse_from(words.split(' '));
        let json = |fields: Map<String, Value>| Value::from(fields).to_string();
        assert_eq!(
            json(fields(&window)),
            r#"{"bytes":1024,"into":"a","past":"2s"}"#
        );
        assert_eq!(
            json(fields(&limits)),
            r#"{"bytes_per_hour":0,"keep_age":"172800s","keep_bytes":1024,"max_dumps":3}"#
        );
        let wrong = RuleArgs::try_parse_from(["x", "--bytes", "7"]);
        assert!(wrong.unwrap_err().to_string().contains("no unit"));
    }
}
