//! Zeek's notices: `notice.log` in JSON. Only notices about a connection have `uid` and `id.*`.
//! Other notices may have `src`, `dst` and `p`.

use std::{borrow::Cow, net::IpAddr, sync::Arc};

use retroscope_eve::proto_number;
use retroscope_packet::{Icmp, proto};
use serde::Deserialize;
use serde_json::Value;

use crate::{Alert, AlertIdentity, ParsedLine, Tuple, eve::sha256, time::micros};

#[derive(Deserialize)]
struct ZeekLine<'a> {
    /// Seconds since the epoch, a number, or ISO 8601.
    #[serde(default)]
    ts: Option<Value>,
    #[serde(borrow, default)]
    note: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    uid: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "id.orig_h")]
    orig_h: Option<Cow<'a, str>>,
    #[serde(default, rename = "id.orig_p")]
    orig_p: Option<u16>,
    #[serde(borrow, default, rename = "id.resp_h")]
    resp_h: Option<Cow<'a, str>>,
    #[serde(default, rename = "id.resp_p")]
    resp_p: Option<u16>,
    #[serde(borrow, default)]
    proto: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    src: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    dst: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    peer_descr: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    community_id: Option<Cow<'a, str>>,
}

/// Parses a line. `None` if the line is not JSON, or does not have the form of [`ZeekLine`].
pub(crate) fn read(line: &[u8]) -> Option<ParsedLine> {
    let parsed: ZeekLine<'_> = serde_json::from_slice(line).ok()?;
    if parsed.note.is_none() {
        return Some(ParsedLine::Ignored);
    }
    Some(match alert(parsed, line) {
        Ok(alert) => ParsedLine::Alert {
            alert: Box::new(alert),
            after_torn: false,
        },
        Err(why) => ParsedLine::Wrong(why),
    })
}

fn alert(line: ZeekLine<'_>, bytes: &[u8]) -> Result<Alert, &'static str> {
    let timestamp = match line.ts {
        Some(Value::String(text)) => text,
        // The shortest text of the floating-point number has the microseconds of the line.
        // Arithmetic with the number would lose digits.
        Some(Value::Number(number)) => number.to_string(),
        _ => return Err("it has no ts"),
    };
    let time_ns = micros_of(&timestamp).ok_or("its ts is none")?;
    let (src, dst) = match (&line.orig_h, &line.resp_h) {
        (Some(orig), Some(resp)) => (Some(orig), Some(resp)),
        _ => (line.src.as_ref(), line.dst.as_ref()),
    };
    let address = |text: Option<&Cow<'_, str>>| {
        let address = text.map(|text| text.parse::<IpAddr>());
        address.transpose().map_err(|_| "its addresses are none")
    };
    let (src, dst) = (address(src)?, address(dst)?);
    let is_v6 = src.is_some_and(|src| src.is_ipv6());
    if dst.is_some_and(|dst| dst.is_ipv6() != is_v6) {
        return Err("its addresses are none");
    }
    // Zeek's name of ICMP for both IP versions.
    let is_icmp = line.proto.as_deref() == Some("icmp");
    let number = match line.proto.as_deref() {
        Some("icmp") if is_v6 => Some(proto::ICMPV6),
        name => name.and_then(proto_number),
    };
    let byte = |number: Option<u16>| number.and_then(|it| u8::try_from(it).ok());
    let icmp = byte(line.orig_p).filter(|_| is_icmp).map(|kind| Icmp {
        kind,
        code: byte(line.resp_p).unwrap_or(0),
    });
    let tuple = src.zip(dst).zip(number);
    let tuple = tuple.map(|((src, dst), proto)| {
        let tuple = Tuple {
            proto,
            src,
            dst,
            ports: None,
        };
        tuple.with_ports(line.orig_p, line.resp_p)
    });
    let hosts = if tuple.is_some() {
        Vec::new()
    } else {
        src.into_iter().chain(dst).collect()
    };
    let owned = |text: Option<Cow<'_, str>>| text.map(Cow::into_owned);
    Ok(Alert {
        time_ns,
        start_ns: None,
        tuple,
        hosts,
        tunnel: None,
        vlan: None,
        in_iface: None,
        icmp,
        community_id: owned(line.community_id),
        // The stamp is usually Zeek's network time, the stamp of the latest packet. This packet may
        // belong to another connection.
        is_on_wire: false,
        identity: Arc::new(AlertIdentity {
            timestamp,
            signature: owned(line.note),
            host: owned(line.peer_descr),
            uid: owned(line.uid),
            sha256: sha256(bytes),
            ..AlertIdentity::default()
        }),
    })
}

/// A time in whole microseconds, as ns since the epoch. A number of seconds with more than six
/// decimal digits is rounded to the nearest microsecond, because a floating-point number of seconds
/// is exact to a quarter of a microsecond.
fn micros_of(text: &str) -> Option<i64> {
    match text.split_once('.') {
        Some((_, fraction))
            if fraction.len() > 6 && fraction.bytes().all(|it| it.is_ascii_digit()) =>
        {
            Some((crate::time_ns(text)? + 500).div_euclid(1000) * 1000)
        }
        _ => micros(text),
    }
}
