//! What is said on a control socket: one request a line, answered by one or more lines, each a JSON object. docs/control.md lists
//! them for other programs.

use retroscope_recorder::{SubDirectory, TriggerRequest};
use serde::{Deserialize, Serialize};

use crate::units::{duration, size_or_none};

/// A request. What is not known is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Request {
    /// Starts a dump by hand.
    Trigger {
        #[serde(skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        #[serde(flatten)]
        window: WindowText,
    },
    /// Lists the rules.
    Rules {},
    /// Adds one.
    AddRule {
        name: String,
        expression: String,
        #[serde(flatten)]
        window: WindowText,
        #[serde(flatten)]
        limits: LimitsText,
    },
    /// Puts an expression and a window in the place of a rule's.
    ChangeRule {
        name: String,
        expression: String,
        #[serde(flatten)]
        window: WindowText,
        #[serde(flatten)]
        limits: LimitsText,
    },
    /// Removes one.
    RemoveRule { name: String },
    /// Says whether a rule's matches are hits.
    EnableRule { name: String, enabled: bool },
    /// Keeps a stretch of time in the ring.
    Pin {
        name: String,
        #[serde(flatten)]
        stretch: StretchText,
    },
    /// Gives it up.
    Unpin { name: String },
    /// What the recorder is doing.
    Status {},
    /// What happens when the ring is full of what is wanted.
    WhenFull { mode: WhenFull },
    /// Packets of the ring.
    Query {
        #[serde(default, skip_serializing_if = "String::is_empty")]
        expression: String,
        #[serde(flatten)]
        stretch: StretchText,
    },
    /// News, from this number on.
    Events {
        #[serde(skip_serializing_if = "Option::is_none")]
        from: Option<u64>,
    },
    /// Reads the file of --config again.
    Reload {},
    /// Ends the recording.
    Stop {},
}

/// A stretch of time as users write it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
pub(crate) struct StretchText {
    /// Packets from this time on: 2026-11-20T19:15:03.5Z, or seconds since 1970
    #[arg(long, value_name = "TIME", conflicts_with = "last")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<String>,

    /// Packets up to this time, included
    #[arg(long, value_name = "TIME", conflicts_with = "last")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<String>,

    /// Packets of this long, up to now
    #[arg(long, value_name = "DURATION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<String>,
}

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

/// What a rule is held to of its own, as users write it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, clap::Args)]
pub(crate) struct LimitsText {
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
            ..self.request()?
        })
    }
}

/// What a full ring does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WhenFull {
    /// New packets go on: the oldest dump or pin in their way loses what it has not written
    #[default]
    Record,
    /// Dumps and pins keep what they want: new packets without a place are lost, and counted
    Protect,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn requests_are_read_as_written_and_nothing_else_is() {
        let pin = Request::Pin {
            name: "a".to_owned(),
            stretch: StretchText {
                last: Some("10s".to_owned()),
                ..StretchText::default()
            },
        };
        let text = serde_json::to_string(&pin).unwrap();
        assert_eq!(text, r#"{"command":"pin","name":"a","last":"10s"}"#);
        assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), pin);
        let trigger = r#"{"command":"trigger"}"#;
        let read = serde_json::from_str::<Request>(trigger).unwrap();
        let window = WindowText::default();
        assert_eq!(read, Request::Trigger { key: None, window });
        let trigger = r#"{"command":"trigger","past":"2s","packets":7,"dump":"udp"}"#;
        let window = WindowText {
            past: Some("2s".to_owned()),
            packets: Some(7),
            dump: Some("udp".to_owned()),
            ..WindowText::default()
        };
        let read = serde_json::from_str::<Request>(trigger).unwrap();
        assert_eq!(read, Request::Trigger { key: None, window });
        let rule = r#"{"command":"add-rule","name":"a","expression":"udp","past":"2s","max_dumps":3,"bytes_per_hour":"1GiB"}"#;
        let read = serde_json::from_str::<Request>(rule).unwrap();
        let Request::AddRule { window, limits, .. } = &read else {
            panic!("{read:?}");
        };
        let request = window.rule_request(limits).unwrap();
        assert_eq!(request.past, Some(Duration::from_secs(2)));
        assert_eq!(
            (request.max_dumps, request.bytes_per_hour),
            (Some(3), Some(1 << 30))
        );
        assert_eq!(serde_json::to_string(&read).unwrap(), rule);
        for wrong in [
            "",
            "7",
            "[]",
            "{}",
            r#"{"command":"fly"}"#,
            r#"{"command":"status","now":true}"#,
            r#"{"command":"pin","name":"a","past":"10s"}"#,
            r#"{"command":"trigger","key":7}"#,
            r#"{"command":"trigger","last":"10s"}"#,
            r#"{"command":"trigger","max_dumps":3}"#,
            r#"{"command":"add-rule","name":"a","expression":"udp","hold":"1s"}"#,
            r#"{"command":"add-rule","name":"a"}"#,
            r#"{"command":"change-rule","name":"a","expression":"udp","last":"10s"}"#,
            r#"{"command":"stop"} {"command":"stop"}"#,
        ] {
            assert!(serde_json::from_str::<Request>(wrong).is_err(), "{wrong}");
        }
    }
}
