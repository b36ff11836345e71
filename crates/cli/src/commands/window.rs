//! What a trigger or a rule asks for, as users write it: as arguments, in the file of `--config`, and for the API.

use retroscope_recorder::{SubDirectory, TriggerRequest};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    commands::record::keep,
    units::{duration, size_or_none},
};

/// What a trigger or a rule asks for as users write it: what is dumped, window and limits; what is left out is as the recorder was started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
pub(crate) struct WindowText {
    /// Time before the trigger
    #[arg(long, value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) past: Option<String>,

    /// Time after the trigger
    #[arg(long, value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) future: Option<String>,

    /// End the dump when it has so many packets; 0: without limit
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) packets: Option<u64>,

    /// End the dump with the packet by which it has so many captured bytes, like 100MiB; 0: without limit
    #[arg(long, value_name = "SIZE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<String>,

    /// What is dumped, as `record --dump` says; for a trigger by hand without what a trigger packet fills in
    #[arg(long, value_name = "EXPRESSION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dump: Option<String>,

    /// Where its files go: a directory of this name below that of the dumps, made if missing
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) into: Option<String>,

    /// Who asks, for the report and the sidecar: 256 bytes at most
    #[arg(long, value_name = "TEXT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) asked_by: Option<String>,
}

/// What a rule has and a trigger by hand has not, as users write it: what it dumps of alerts, and what it is held to of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
pub(crate) struct LimitsText {
    /// What is dumped of an alert of Prometheus' Alertmanager that names the rule, which labels of the alert fill in, as 'host {instance}' (docs/alerts.md)
    #[arg(long, value_name = "TEMPLATE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) alert_dump: Option<String>,

    /// After the window of a dump of the rule, time in which the same dump expression starts no other [default: as --hold-off of record]
    #[arg(long, value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hold_off: Option<String>,

    /// Dumps of the rule open at once at most, within --max-dumps of record; 0: as many as that lets it
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_dumps: Option<u64>,

    /// Dumps of the rule started in any minute at most, within --dumps-per-minute of record; 0: as many as that lets it
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dumps_per_minute: Option<u64>,

    /// Start no dump of the rule while its dumps wrote so much in the last hour, like 1GiB, within --bytes-per-hour of record; 0: as much as that
    /// lets it
    #[arg(long, value_name = "SIZE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_hour: Option<String>,

    /// Keep files of the rule's dumps up to so much and so long, as 10GiB,7d, within --keep of record
    #[arg(long, value_name = "SIZE,TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keep: Option<String>,
}

impl WindowText {
    /// As the recorder takes it.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(crate) fn request(&self) -> Result<TriggerRequest, String> {
        let read = |text: &Option<String>| text.as_deref().map(duration).transpose();
        Ok(TriggerRequest {
            past: read(&self.past)?,
            future: read(&self.future)?,
            packets_max: self.packets,
            bytes_max: self.bytes.as_deref().map(size_or_none).transpose()?,
            dump: self.dump.clone(),
            into: self.into.as_deref().map(SubDirectory::new).transpose()?,
            asked_by: self.asked_by.clone(),
            ..TriggerRequest::default()
        })
    }

    /// The same of a rule, with its limits.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(crate) fn rule_request(&self, limits: &LimitsText) -> Result<TriggerRequest, String> {
        let bytes_per_hour = limits.bytes_per_hour.as_deref().map(size_or_none);
        Ok(TriggerRequest {
            hold_off: limits.hold_off.as_deref().map(duration).transpose()?,
            max_dumps: limits.max_dumps,
            dumps_per_minute: limits.dumps_per_minute,
            bytes_per_hour: bytes_per_hour.transpose()?,
            keep: limits.keep.as_deref().map(keep).transpose()?,
            alert_dump: limits.alert_dump.clone(),
            ..self.request()?
        })
    }
}

/// Fields as the API takes them: sizes are numbers there.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn fields(of: &impl Serialize) -> Result<Map<String, Value>, String> {
    let mut fields = match serde_json::to_value(of) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    for name in ["bytes", "bytes_per_hour"] {
        if let Some(Value::String(text)) = fields.get(name) {
            let bytes = size_or_none(text)?;
            fields.insert(name.to_owned(), bytes.into());
        }
    }
    if let Some(Value::String(text)) = fields.remove("keep") {
        let kept = keep(&text)?;
        let age = kept.age.map(|age| format!("{}s", age.as_secs()));
        fields.extend(
            kept.bytes
                .map(|bytes| ("keep_bytes".to_owned(), bytes.into())),
        );
        fields.extend(age.map(|age| ("keep_age".to_owned(), age.into())));
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_rule_is_written_for_the_recorder_and_for_the_api() {
        let text = r#"{"past":"2s","bytes":"1KiB","into":"a"}"#;
        let window: WindowText = serde_json::from_str(text).unwrap();
        let text = r#"{"max_dumps":3,"bytes_per_hour":"0","keep":"1KiB,2d"}"#;
        let limits: LimitsText = serde_json::from_str(text).unwrap();
        let request = window.rule_request(&limits).unwrap();
        assert_eq!(request.past, Some(Duration::from_secs(2)));
        assert_eq!(
            (request.bytes_max, request.max_dumps, request.bytes_per_hour),
            (Some(1024), Some(3), Some(0))
        );
        let json = |fields: Map<String, Value>| Value::from(fields).to_string();
        assert_eq!(
            json(fields(&window).unwrap()),
            r#"{"bytes":1024,"into":"a","past":"2s"}"#
        );
        assert_eq!(
            json(fields(&limits).unwrap()),
            r#"{"bytes_per_hour":0,"keep_age":"172800s","keep_bytes":1024,"max_dumps":3}"#
        );
        let wrong = WindowText {
            bytes: Some("7".to_owned()),
            ..WindowText::default()
        };
        assert!(fields(&wrong).unwrap_err().contains("no unit"));
    }
}
