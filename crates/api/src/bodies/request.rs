//! Bodies of requests: triggers, rules, pins and time ranges, in the notation for users.

use std::{fmt, marker::PhantomData, net::IpAddr, ops::RangeInclusive, time::Duration};

use retroscope_capture::quantity;
use retroscope_filter::Template;
use retroscope_packet::{FlowEndpoint, FlowKey, is_community_id};
use retroscope_recorder::{
    KnownFlow, ManualTrigger, NO_PACKET, RecorderHandle, RequestedRange, RetentionLimit,
    RuleScanStatus, RuleStatus, SubDirectory, TriggerRequest, parse_time, rfc3339,
};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, IgnoredAny, Unexpected, Visitor},
};
use utoipa::{IntoParams, ToSchema};

use crate::{caller::Caller, past_scan::ScanSummary, problem::Problem, role::Role};

/// Leases that a pin may have.
const LEASES: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

/// Maximum number of characters of `asked_by`.
const ASKED_BY_MAX: usize = 256;

/// A body with the options that triggers and rules share. (serde cannot flatten one struct into
/// another and refuse unknown fields.)
macro_rules! dump_options {
    ($(#[$of_all:meta])* $name:ident { $($(#[$of_field:meta])* $field:ident: $type:ty,)* }) => {
        #[derive(Debug, Clone, Default, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$of_all])*
        pub(crate) struct $name {
            $($(#[$of_field])* pub(crate) $field: $type,)*
            /// Time before the trigger that the dump includes: `250ms`, `10s`, `5m`.
            #[schema(example = "10s", pattern = r"^[0-9]{1,9}(\.[0-9]{1,9})?(ns|us|ms|s|m|min|h|d)?$")]
            pub(crate) past: Option<String>,
            /// Time after the trigger that the dump includes.
            #[schema(example = "5s", pattern = r"^[0-9]{1,9}(\.[0-9]{1,9})?(ns|us|ms|s|m|min|h|d)?$")]
            pub(crate) future: Option<String>,
            /// The dump ends after this number of packets; 0: no limit.
            #[serde(default, deserialize_with = "count")]
            pub(crate) packets: Option<u64>,
            /// The dump ends with the packet that reaches this number of captured bytes; 0: no
            /// limit.
            #[serde(default, deserialize_with = "count")]
            pub(crate) bytes: Option<u64>,
            /// The directory for the dump's files: a name below the directory of the dumps.
            #[schema(example = "voip", pattern = "^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$")]
            pub(crate) into: Option<String>,
            /// The requester, for the report and the sidecar. If left out, `asked_by` is the
            /// `caller`: the token's name, or the user at the unix socket.
            #[schema(max_length = 256)]
            pub(crate) asked_by: Option<String>,
        }

        impl $name {
            /// The shared options, and the caller's account.
            pub(crate) fn window(&self, caller: &Caller) -> Result<TriggerRequest, Problem> {
                let into = self.into.as_deref().map(SubDirectory::new).transpose();
                let asked_by = self.asked_by.clone();
                let is_long = |text: &String| text.chars().count() > ASKED_BY_MAX;
                if asked_by.as_ref().is_some_and(is_long) {
                    let why = format!("`asked_by` has {ASKED_BY_MAX} characters at most");
                    return Err(Problem::invalid(why));
                }
                Ok(TriggerRequest {
                    past: duration("past", &self.past)?,
                    future: duration("future", &self.future)?,
                    packets_max: self.packets,
                    bytes_max: self.bytes,
                    dump: None,
                    into: into.map_err(Problem::invalid)?,
                    asked_by: Some(asked_by.unwrap_or_else(|| caller.account.to_string())),
                    caller: Some(caller.account.to_string()),
                    ..TriggerRequest::default()
                })
            }
        }
    };
}

/// A flow over IP. The fields have the names of EVE.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Flow)]
pub(crate) struct FlowBody {
    /// The address of one end.
    #[schema(example = "192.0.2.7")]
    src_ip: String,
    /// The port of `src_ip`, for TCP, UDP and SCTP.
    #[serde(default, deserialize_with = "count")]
    #[schema(maximum = 65_535)]
    src_port: Option<u16>,
    /// The address of the other end.
    #[schema(example = "198.51.100.2")]
    dest_ip: String,
    /// The port of `dest_ip`, for TCP, UDP and SCTP.
    #[serde(default, deserialize_with = "count")]
    #[schema(maximum = 65_535)]
    dest_port: Option<u16>,
    /// `TCP`, `UDP`, `SCTP`, `ICMP`, `IPv6-ICMP`, or the number of a protocol.
    #[schema(example = "TCP", max_length = 16)]
    proto: String,
}

impl FlowBody {
    fn key(&self) -> Result<FlowKey, Problem> {
        let proto = match self.proto.to_ascii_lowercase().as_str() {
            "tcp" => 6,
            "udp" => 17,
            "sctp" => 132,
            "icmp" => 1,
            "icmp6" | "icmpv6" | "ipv6-icmp" => 58,
            number => number.parse().map_err(|_| {
                let given = &self.proto;
                Problem::invalid(format!(
                    "`proto`: {given:?} is neither TCP, UDP, SCTP, ICMP, IPv6-ICMP nor a number"
                ))
            })?,
        };
        let has_ports = matches!(proto, 6 | 17 | 132);
        let ports = (self.src_port, self.dest_port);
        if has_ports && (ports.0.is_none() || ports.1.is_none()) {
            return Err(Problem::invalid(
                "a flow of TCP, UDP or SCTP has `src_port` and `dest_port`",
            ));
        }
        let address = |text: &str| {
            let why = || Problem::invalid(format!("{text:?} is no address of IP"));
            text.parse::<IpAddr>().map_err(|_| why())
        };
        let (src_ip, dest_ip) = (address(&self.src_ip)?, address(&self.dest_ip)?);
        if src_ip.is_ipv4() != dest_ip.is_ipv4() {
            return Err(Problem::invalid(
                "`src_ip` and `dest_ip` are of one version of IP",
            ));
        }
        let end = |addr, port: Option<u16>| FlowEndpoint {
            addr,
            port: port.unwrap_or(0),
        };
        let (src, dest) = (end(src_ip, ports.0), end(dest_ip, ports.1));
        Ok(FlowKey::between(proto, src, dest))
    }
}

impl TriggerBody {
    /// Converts the body to a trigger with an `Idempotency-Key`. [`restrict_to_caller`] must
    /// restrict the dump filter afterwards.
    pub(crate) fn read(
        self,
        caller: &Caller,
        key: Option<String>,
    ) -> Result<ManualTrigger, Problem> {
        let flow = match (&self.flow, &self.community_id) {
            (None, None) => None,
            (Some(flow), None) => Some(KnownFlow::Key(flow.key()?)),
            (None, Some(id)) if is_community_id(id) => Some(KnownFlow::CommunityId(id.clone())),
            (None, Some(id)) => {
                let why = format!(
                    "`community_id`: {id:?} is none of version 1, as 1:LQU9qZlK+B5F3KDmev6m5PMibrg="
                );
                return Err(Problem::invalid(why));
            }
            _ => return Err(Problem::invalid("`flow` or `community_id`, not both")),
        };
        let mut request = self.window(caller)?;
        // A trigger for a flow dumps the whole flow by default, not the packets of the recorder's
        // default dump filter.
        let of_flow = flow.as_ref().map(|_| String::new());
        request.dump = self.dump.or(of_flow);
        Ok(ManualTrigger {
            key,
            at_ns: self.time.as_deref().map(time).transpose()?,
            flow,
            request,
            ..ManualTrigger::default()
        })
    }
}

dump_options! {
    /// A manual trigger. For left-out options of the dump, the recorder's options apply.
    TriggerBody {
        /// The dump filter, a pcap-filter(7) expression; empty: all packets. If left out, the
        /// recorder's filter applies, or the whole flow if the trigger has a flow.
        #[schema(example = "udp port 53")]
        dump: Option<String>,
        /// The flow to dump, in both directions and under any VLAN tags. Packets must also match
        /// `dump`.
        flow: Option<FlowBody>,
        /// The Community ID (version 1, seed 0) of the flow to dump, instead of `flow`. Packets
        /// must also match `dump`.
        #[schema(pattern = "^1:[A-Za-z0-9+/]{27}=$")]
        community_id: Option<String>,
        /// The time of the incident, if it is before now: RFC 3339 with any offset, or s, ms, µs or
        /// ns since 1970. If left out: now.
        time: Option<String>,
    }
}

dump_options! {
    /// A trigger rule. PUT accepts the body that GET returns, and ignores `name`, `configured`,
    /// `hits`, `last_hit`, `caller` and `scan`. If a field is `null` or left out, the recorder's
    /// option applies, unless the field says otherwise.
    #[derive(PartialEq, Serialize)]
    #[schema(as = Rule)]
    RuleBody {
        /// The rule's name, or its position among the triggers of the start, from 1.
        #[schema(read_only)]
        name: Option<String>,
        /// Whether the rule is from the command line or the configuration file.
        #[schema(read_only)]
        configured: Option<bool>,
        /// Packets that matched `filter`; `null`: not counted, for a script.
        #[schema(read_only)]
        hits: Option<u64>,
        /// Time stamp of the last hit, RFC 3339; `null`: no hit, or unknown because there are more
        /// than 256 rules.
        #[schema(read_only)]
        last_hit: Option<String>,
        /// The token or the user that requested the rule.
        #[schema(read_only)]
        caller: Option<String>,
        /// The scan of the past that `scan_past` requested; `null`: only new packets were tried.
        #[serde(default, deserialize_with = "ignored")]
        scan: Option<RuleScanBody>,
        /// Also try the packets in the ring that are at most this much older than the rule, oldest
        /// first. The scan takes 60 s at most. Limits count at the time of the scan. The rule is
        /// enabled. The answer waits for the scan.
        #[serde(skip_serializing)]
        #[schema(write_only, example = "60s", pattern = r"^[0-9]{1,9}(\.[0-9]{1,9})?(ns|us|ms|s|m|min|h|d)?$")]
        scan_past: Option<String>,
        /// The trigger filter, a pcap-filter(7) expression: packets that match are hits. May be
        /// left out if the rule has an `alert_dump`.
        #[schema(example = "tcp[tcpflags] & tcp-rst != 0")]
        filter: Option<String>,
        /// The dump filter, a template that replaces `--dump`.
        #[schema(example = "host $srcIP")]
        dump: Option<String>,
        /// The dump filter for alerts of Alertmanager that name the rule: a template that the
        /// alert's labels fill in.
        #[schema(example = "host {instance} and port {instance}")]
        alert_dump: Option<String>,
        /// Whether packets that match are hits. If left out, an existing rule keeps its state, and
        /// a new rule is enabled.
        enabled: Option<bool>,
        /// Whether the rule's first dump disables the rule. If left out: `false`.
        single: Option<bool>,
        /// Time after a dump's window in which the same filled-in dump filter starts no other dump.
        #[schema(example = "1m", pattern = r"^[0-9]{1,9}(\.[0-9]{1,9})?(ns|us|ms|s|m|min|h|d)?$")]
        hold_off: Option<String>,
        /// Limit of open dumps of the rule, within the limit of all rules. 0 or left out: no
        /// separate limit.
        #[serde(default, deserialize_with = "count")]
        max_dumps: Option<u64>,
        /// Limit of dumps of the rule that start in any minute. 0 or left out: no separate limit.
        #[serde(default, deserialize_with = "count")]
        dumps_per_minute: Option<u64>,
        /// Limit of bytes that the rule's dumps wrote in the last hour: at the limit the rule
        /// starts no dump. 0 or left out: no separate limit.
        #[serde(default, deserialize_with = "count")]
        bytes_per_hour: Option<u64>,
        /// Bytes of the rule's dumps: above this size the files of the oldest dump are deleted.
        #[serde(default, deserialize_with = "count")]
        keep_bytes: Option<u64>,
        /// Age at which the files of a dump of the rule are deleted.
        #[schema(example = "48h", pattern = r"^[0-9]{1,9}(\.[0-9]{1,9})?(ns|us|ms|s|m|min|h|d)?$")]
        keep_age: Option<String>,
    }
}

/// A scan of the past for a rule.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = RuleScan)]
pub(crate) struct RuleScanBody {
    /// The requested `scan_past`: the time range before the rule.
    past: String,
    /// Whether the scan runs.
    running: bool,
    /// Why the scan ended early; `null`: the scan runs, or has tried all packets of its time range
    /// in the ring.
    stopped: Option<String>,
    /// Packets that matched `filter`.
    hits: u64,
    /// Dumps that these packets started.
    dumps: u64,
    /// New packets that matched while the scan ran, and whose hits acted after the scan.
    waited: u64,
    /// The packets that the scan tried; `null`: the scan runs, or has tried no packet.
    scan: Option<ScanSummary>,
}

impl From<RuleScanStatus> for RuleScanBody {
    fn from(scan: RuleScanStatus) -> Self {
        Self {
            past: quantity::duration_text(scan.past),
            running: scan.is_whole.is_none(),
            stopped: scan.why,
            hits: scan.hits,
            dumps: scan.dumps,
            waited: scan.waited,
            scan: scan.report.as_deref().map(ScanSummary::from),
        }
    }
}

fn ignored<'de, D: Deserializer<'de>, T>(from: D) -> Result<Option<T>, D::Error> {
    IgnoredAny::deserialize(from).map(|_| None)
}

impl From<RuleStatus> for RuleBody {
    fn from(rule: RuleStatus) -> Self {
        let request = rule.request;
        let text = |time: Option<Duration>| time.map(quantity::duration_text);
        let keep = request.keep.unwrap_or_default();
        Self {
            name: Some(rule.name),
            configured: Some(rule.is_configured),
            hits: rule.hits,
            last_hit: rule.last_hit_ns.map(rfc3339),
            caller: request.caller,
            scan: rule.scan.map(RuleScanBody::from),
            scan_past: None,
            filter: Some(rule.expression),
            dump: request.dump,
            alert_dump: request.alert_dump,
            enabled: Some(rule.is_enabled),
            single: Some(request.single),
            hold_off: text(request.hold_off),
            max_dumps: request.max_dumps,
            dumps_per_minute: request.dumps_per_minute,
            bytes_per_hour: request.bytes_per_hour,
            keep_bytes: keep.bytes,
            keep_age: text(keep.age),
            past: text(request.past),
            future: text(request.future),
            packets: request.packets_max,
            bytes: request.bytes_max,
            into: request.into.map(|into| into.as_str().to_owned()),
            asked_by: request.asked_by,
        }
    }
}

impl RuleBody {
    /// The rule without `scan_past` and the fields that only the recorder sets.
    pub(crate) fn definition(mut self) -> Self {
        self.name = None;
        self.configured = None;
        self.hits = None;
        self.last_hit = None;
        self.caller = None;
        self.scan = None;
        self.scan_past = None;
        self
    }

    /// The requested time range of a scan before the rule.
    pub(crate) fn past_to_scan(&self) -> Result<Option<Duration>, Problem> {
        let past = duration("scan_past", &self.scan_past)?;
        if past.is_some() && self.enabled == Some(false) {
            let why = "a disabled rule has no hits: leave `scan_past` out, or enable the rule";
            return Err(Problem::invalid(why).of_field("scan_past"));
        }
        Ok(past)
    }

    /// The trigger filter. A rule for alerts only has a filter that matches no packet.
    pub(crate) fn filter(&self) -> Result<&str, Problem> {
        let given = self.filter.as_deref();
        let given = given.or(self.alert_dump.as_ref().map(|_| NO_PACKET));
        given.ok_or_else(|| {
            let why = "give `filter` (for packets) or `alert_dump` (for alerts), or both";
            Problem::invalid(why)
        })
    }

    /// The options of the rule, and the caller's account.
    pub(crate) fn request(&self, caller: &Caller) -> Result<TriggerRequest, Problem> {
        let keep = RetentionLimit {
            bytes: self.keep_bytes,
            age: duration("keep_age", &self.keep_age)?,
        };
        Ok(TriggerRequest {
            dump: self.dump.clone(),
            alert_dump: self.alert_dump.clone(),
            hold_off: duration("hold_off", &self.hold_off)?,
            max_dumps: self.max_dumps,
            dumps_per_minute: self.dumps_per_minute,
            bytes_per_hour: self.bytes_per_hour,
            single: self.single.unwrap_or(false),
            keep: (keep != RetentionLimit::default()).then_some(keep),
            ..self.window(caller)?
        })
    }
}

/// A pin that a client requests. An empty object means all packets in the ring.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PinRequest)]
pub(crate) struct PinRequestBody {
    /// Packets from this time on: RFC 3339 with any offset, or a number since 1970, in s, ms, µs or
    /// ns by its size.
    #[schema(example = "2026-11-20T19:15:03.5Z")]
    from: Option<String>,
    /// Packets up to and including this time.
    to: Option<String>,
    /// Packets of this duration before now. Excludes `from` and `to`.
    #[schema(example = "30s")]
    last: Option<String>,
    /// Time after which the pin ends, 1 s to 1 h. A repeated request with the same `from` and `to`
    /// renews the lease. If left out, the pin stays until it is removed.
    #[schema(
        example = "30s",
        pattern = r"^[0-9]{1,9}(\.[0-9]{1,9})?(ns|us|ms|s|m|min|h|d)?$"
    )]
    lease: Option<String>,
}

impl PinRequestBody {
    pub(crate) fn read(self) -> Result<(RequestedRange, Option<Duration>), Problem> {
        let lease = duration("lease", &self.lease)?;
        if lease.is_some_and(|lease| !LEASES.contains(&lease)) {
            return Err(Problem::invalid("`lease` is 1 s to 1 h"));
        }
        let stretch = TimeRangeBody {
            from: self.from,
            to: self.to,
            last: self.last,
        };
        Ok((stretch.read()?, lease))
    }
}

/// A time range. An empty object means all packets in the ring.
#[derive(Debug, Clone, Default, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[schema(as = TimeRange)]
#[into_params(parameter_in = Query)]
pub(crate) struct TimeRangeBody {
    /// Packets from this time on: RFC 3339 with any offset, or a number since 1970, in s, ms, µs or
    /// ns by its size.
    #[schema(example = "2026-11-20T19:15:03.5Z")]
    #[param(example = "2026-11-20T19:15:03.5Z")]
    pub(crate) from: Option<String>,
    /// Packets up to and including this time.
    pub(crate) to: Option<String>,
    /// Packets of this duration before now. Excludes `from` and `to`.
    #[schema(example = "30s")]
    #[param(example = "30s")]
    pub(crate) last: Option<String>,
}

impl TimeRangeBody {
    pub(crate) fn read(&self) -> Result<RequestedRange, Problem> {
        let at = |text: &Option<String>| text.as_deref().map(time).transpose();
        let last = duration("last", &self.last)?;
        let stretch = RequestedRange {
            from_ns: at(&self.from)?,
            to_ns: at(&self.to)?,
            last_ns: last.map(|last| i64::try_from(last.as_nanos()).unwrap_or(i64::MAX)),
        };
        if last.is_some() && (self.from.is_some() || self.to.is_some()) {
            return Err(Problem::invalid(
                "`last` stands alone, without `from` and `to`",
            ));
        }
        let ends = stretch.from_ns.zip(stretch.to_ns);
        if ends.is_some_and(|(from, to)| from > to) {
            return Err(Problem::invalid("`to` is before `from`"));
        }
        Ok(stretch)
    }
}

/// Parses the duration of a field.
fn duration(field: &'static str, text: &Option<String>) -> Result<Option<Duration>, Problem> {
    let parse = |text: &String| {
        quantity::duration(text).ok_or_else(|| {
            let why = format!("{text:?} is not a duration: write it like 250ms, 10s, 5m or 2h");
            Problem::invalid(why).of_field(field)
        })
    };
    text.as_ref().map(parse).transpose()
}

/// Parses a time. Returns ns since the UNIX epoch.
pub(crate) fn time(text: &str) -> Result<i64, Problem> {
    parse_time(text).map_err(Problem::invalid)
}

/// Combines the requested dump filter, or the filter of manual triggers, with the token's filter.
/// Both are in parentheses, and the requested filter must compile alone: a stray parenthesis cannot
/// end the token's filter.
pub(crate) fn restrict_to_caller(
    handle: &RecorderHandle,
    caller: &Caller,
    asked: Option<String>,
) -> Result<Option<String>, Problem> {
    if let Some(asked) = &asked {
        check_names(asked, caller)?;
    }
    if let Some(asked) = &asked
        && !(caller.may(Role::Packets) && caller.snaplen.is_none())
    {
        check_headers_only(handle, asked, caller)?;
    }
    let Some(own) = &caller.filter else {
        return Ok(asked);
    };
    let is_new = asked.is_some();
    let asked = asked.unwrap_or_else(|| handle.manual_dump());
    if asked.trim().is_empty() {
        return Ok(Some(own.to_string()));
    }
    if is_new {
        handle.check_expression(&asked)?;
    }
    Ok(Some(format!("({own}) and ({asked})")))
}

/// Refuses a filter that names a host or network, unless the caller is an admin. A look-up may send
/// text of the client to name servers, and take seconds.
pub(crate) fn check_names(filter: &str, caller: &Caller) -> Result<(), Problem> {
    if !caller.may(Role::Admin) {
        Template::parse(filter)?.without_hosts()?;
    }
    Ok(())
}

/// Refuses a filter that may read payload. The recorder matches a dump filter against all captured
/// bytes, and the number of packets in the dump would reveal payload byte by byte.
fn check_headers_only(
    handle: &RecorderHandle,
    asked: &str,
    caller: &Caller,
) -> Result<(), Problem> {
    // An empty filter matches every packet.
    if asked.trim().is_empty() || handle.reads_headers_only(asked)? {
        return Ok(());
    }
    let name = &caller.name;
    Err(Problem::forbidden(format!(
        "token '{name}' may not see bytes of packets, and the filter may read bytes beyond the headers of Ethernet, VLAN, IP, TCP, UDP, SCTP and ICMP, for example by `[…]`, `payload`, `protochain`, a tunnel, or `or` after `vlan` or `mpls`"
    )))
}

/// Deserializes an optional count. Numbers of more than 63 bits are probably mistakes. `7.0` is 7,
/// as in JSON Schema.
pub(crate) fn count<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    from.deserialize_option(CountVisitor(PhantomData))
}

struct CountVisitor<T>(PhantomData<T>);

impl<'de, T: TryFrom<u64>> Visitor<'de> for CountVisitor<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_u64(self)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        let count = T::try_from(number).ok();
        let count = count.filter(|_| i64::try_from(number).is_ok());
        let too_large = || E::custom(format!("{number} is no count: it is too large"));
        count.map(Some).ok_or_else(too_large)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        let is_whole = number.fract() == 0.0 && (0.0..9e15).contains(&number);
        if !is_whole {
            return Err(E::invalid_value(Unexpected::Float(number), &self));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole, and within what floats tell apart"
        )]
        self.visit_u64(number as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_whole_numbers_however_they_are_written() {
        #[derive(Debug, Deserialize)]
        struct Body {
            #[serde(default, deserialize_with = "count")]
            n: Option<u16>,
        }
        let read = |text: &str| serde_json::from_str::<Body>(text).map(|body| body.n).ok();
        for (text, expected) in [
            ("{}", Some(None)),
            (r#"{"n":null}"#, Some(None)),
            (r#"{"n":7}"#, Some(Some(7))),
            (r#"{"n":7.0}"#, Some(Some(7))),
            (r#"{"n":7e2}"#, Some(Some(700))),
            (r#"{"n":65536}"#, None),
            (r#"{"n":65536.0}"#, None),
            (r#"{"n":7.5}"#, None),
            (r#"{"n":-1}"#, None),
            (r#"{"n":-1.0}"#, None),
            (r#"{"n":1e300}"#, None),
            (r#"{"n":"7"}"#, None),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }
}
