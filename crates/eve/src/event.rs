//! The recorder's own events.

use serde::Serialize;

use crate::text::{put, put_stamp};

/// Appends the line of an event, with `"event_type":"retroscope"`. `time_ns` is nanoseconds since
/// the UNIX epoch; the line has the time in whole microseconds.
///
/// The object under `retroscope` is `body`, whose `kind` names the event, for example `triggered`,
/// `finished` or `notice`. The keys `timestamp` and `event_type` have the meaning that EVE gives
/// them.
///
/// # Errors
/// If the body cannot be written as JSON. Then nothing is appended.
pub fn event(
    out: &mut Vec<u8>,
    time_ns: i64,
    body: &impl Serialize,
) -> Result<(), serde_json::Error> {
    let start = out.len();
    put(out, r#"{"timestamp":"#);
    put_stamp(out, time_ns);
    put(out, r#","event_type":"retroscope","retroscope":"#);
    let written = serde_json::to_writer(&mut *out, body);
    if written.is_err() {
        out.truncate(start);
    } else {
        put(out, "}\n");
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Notice {
        kind: &'static str,
        text: &'static str,
        dump: Option<u64>,
    }

    #[test]
    fn an_event_is_a_line_of_ours() {
        let mut out = b"before\n".to_vec();
        let notice = Notice {
            kind: "notice",
            text: "one\ntwo \"three\"",
            dump: None,
        };
        event(&mut out, 1_000, &notice).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            concat!(
                "before\n",
                r#"{"timestamp":"1970-01-01T00:00:00.000001+0000","event_type":"retroscope","#,
                r#""retroscope":{"kind":"notice","text":"one\ntwo \"three\"","dump":null}}"#,
                "\n"
            )
        );
    }

    #[test]
    fn what_is_no_json_leaves_nothing_behind() {
        let mut out = b"before\n".to_vec();
        let keys_are_lists = std::collections::BTreeMap::from([([1, 2], 3)]);
        event(&mut out, 0, &keys_are_lists).unwrap_err();
        assert_eq!(out, b"before\n");
    }
}
