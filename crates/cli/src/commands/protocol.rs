//! What is said on a control socket: one request a line, answered by one or more lines, each a JSON object. docs/control.md lists
//! them for other programs.

use serde::{Deserialize, Serialize};

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
    },
    /// Puts an expression and a window in the place of a rule's.
    ChangeRule {
        name: String,
        expression: String,
        #[serde(flatten)]
        window: WindowText,
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
            r#"{"command":"add-rule","name":"a"}"#,
            r#"{"command":"change-rule","name":"a","expression":"udp","last":"10s"}"#,
            r#"{"command":"stop"} {"command":"stop"}"#,
        ] {
            assert!(serde_json::from_str::<Request>(wrong).is_err(), "{wrong}");
        }
    }
}
