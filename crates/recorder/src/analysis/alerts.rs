//! Which packets the dump of an alert selects, and which of these packets the dump marks.
//!
//! The dump's filter ([`AlertScope::filled`]) compares at most the flow or the hosts in the
//! outermost headers. The code here compares, for example, VLAN stacks and packets inside a tunnel.

use std::{fmt, net::IpAddr, sync::Arc};

use retroscope_alert::{Alert, Tuple};
use retroscope_filter::{FilledExpression, FilterError, KnownFlow, Template};
use retroscope_packet::{
    Datagrams, FlowKey, InnerPacket, LinkType, Parsed, VlanStack, find_inner, flow_of, fragment_of,
    parse,
};

use crate::intake::interfaces::RecordedInterface;

/// Maximum number of VLAN tags that Suricata reports for a packet.
const VLAN_LAYERS: usize = 3;

/// The packets that the dump of an alert selects.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct AlertScope {
    /// The flow or the hosts in the outermost headers, or all packets.
    outer: OuterScope,
    /// If the packet of the alert is in a tunnel: the flow inside the tunnel.
    inner: Option<FlowKey>,
    /// VLAN identifiers, outer to inner; empty: untagged packets only; `None`: any.
    vlan: Option<Vec<u16>>,
    /// Name of the interface; `None`: all interfaces.
    interface: Option<Arc<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum OuterScope {
    Flow(FlowKey),
    Hosts(Vec<IpAddr>),
    Everything,
}

impl AlertScope {
    /// `interface`: the alert's interface, if an interface of that name is recorded.
    pub(crate) fn new(alert: &Alert, interface: Option<Arc<str>>) -> Self {
        let (outer, inner) = match (alert.tuple, alert.tunnel) {
            // The two directions of a VXLAN or Geneve tunnel may have different source ports. So
            // the outer flow has no ports.
            (Some(tuple), Some(tunnel)) => {
                let ends = Tuple {
                    ports: None,
                    ..tunnel
                };
                (OuterScope::Flow(ends.flow()), Some(tuple.flow()))
            }
            (Some(tuple), None) => (OuterScope::Flow(tuple.flow()), None),
            (None, _) if alert.hosts.is_empty() => (OuterScope::Everything, None),
            (None, _) => (OuterScope::Hosts(alert.hosts.clone()), None),
        };
        Self {
            vlan: alert
                .vlan
                .clone()
                .filter(|_| outer != OuterScope::Everything),
            outer,
            inner,
            interface,
        }
    }

    /// Whether the dump selects all packets, or all packets of one interface.
    pub(crate) fn is_window(&self) -> bool {
        self.outer == OuterScope::Everything
    }

    /// The filter that finds candidate packets. The [`ScopeFilter`], if any, then decides about
    /// each.
    pub(crate) fn filled(&self) -> Result<FilledExpression, FilterError> {
        match &self.outer {
            OuterScope::Flow(key) => Template::parse("$flow")?.filled_for(&KnownFlow::Key(*key)),
            OuterScope::Hosts(hosts) => {
                let hosts = hosts.iter().map(|host| format!("host {host}"));
                let one = hosts.collect::<Vec<_>>().join(" and ");
                // Matches packets with no VLAN tag, one tag or two: each `vlan` shifts the offsets
                // of all later terms.
                let tagged = format!("({one}) or (vlan and (({one}) or (vlan and {one})))");
                Template::parse(&tagged)?.into_plain()
            }
            OuterScope::Everything => Template::parse("")?.into_plain(),
        }
    }

    fn is_narrow(&self) -> bool {
        self.inner.is_some() || self.vlan.is_some() || self.interface.is_some()
    }

    /// Whether the packet `inside` a tunnel belongs to the flow `key`, and the VLAN tags match the
    /// scope. `outer`: the tags of the frame around the tunnel.
    fn is_inside(&self, key: FlowKey, outer: &VlanStack, inside: &InnerPacket<'_>) -> bool {
        is_of(key, &inside.parsed) && self.has_vlan([outer, &inside.parsed.vlan])
    }

    fn has_vlan(&self, stacks: [&VlanStack; 2]) -> bool {
        let Some(vlan) = &self.vlan else {
            return true;
        };
        let tags = stacks.iter().flat_map(|stack| stack.tags());
        let mut ids = tags.map(|tag| tag.id());
        let are_equal = vlan.iter().all(|id| ids.next() == Some(*id));
        are_equal && (vlan.len() >= VLAN_LAYERS || ids.next().is_none())
    }
}

/// The text in a dump's expression, after the filter that finds the packets.
impl fmt::Display for AlertScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(inner) = &self.inner {
            write!(f, " carrying $flow[{inner}]")?;
        }
        if let Some(vlan) = &self.vlan {
            let ids = vlan.iter().map(u16::to_string);
            let ids = ids.collect::<Vec<_>>().join(".");
            f.write_str(&if ids.is_empty() {
                " without a tag".to_owned()
            } else {
                format!(" in vlan {ids}")
            })?;
        }
        match &self.interface {
            Some(name) => write!(f, " on {name}"),
            None => Ok(()),
        }
    }
}

/// Whether a packet belongs to a flow. Ports are compared only if the flow has ports and the packet
/// is no later fragment.
fn is_of(key: FlowKey, parsed: &Parsed) -> bool {
    let flow = flow_of(parsed);
    if flow == Some(key) {
        return true;
    }
    let Some(ip) = parsed.network else {
        return false;
    };
    let fragment = ip.fragment.map(|fragment| fragment.proto);
    let between = |proto: u8, low: IpAddr, high: IpAddr| {
        (ip.proto.or(fragment) == Some(proto))
            && ((ip.src, ip.dst) == (low, high) || (ip.src, ip.dst) == (high, low))
    };
    match key {
        FlowKey::Ip { proto, low, high } => between(proto, low, high),
        FlowKey::Ports { proto, low, high } => {
            parsed.is_later_fragment() && between(proto, low.addr, high.addr)
        }
        FlowKey::Mac { .. } | FlowKey::Link { .. } => false,
    }
}

/// Decides which of the packets that the alert's filter finds belong to the dump.
#[derive(Debug, Clone)]
pub(crate) struct ScopeFilter {
    sought: Arc<AlertScope>,
    /// For the newest fragmented outer datagrams: whether the first fragment carries the inner
    /// flow.
    datagrams: Datagrams<bool>,
}

impl ScopeFilter {
    /// `None`: every packet that the filter finds belongs to the dump.
    pub(crate) fn new(sought: &Arc<AlertScope>) -> Option<Self> {
        sought.is_narrow().then(|| Self {
            sought: Arc::clone(sought),
            datagrams: Datagrams::default(),
        })
    }

    pub(crate) fn takes(&mut self, interface: &RecordedInterface, data: &[u8]) -> bool {
        let sought = &self.sought;
        if (sought.interface.as_deref()).is_some_and(|name| name != interface.name) {
            return false;
        }
        if sought.inner.is_none() && sought.vlan.is_none() {
            return true;
        }
        let parsed = parse(interface.link_type, data);
        let Some(key) = sought.inner else {
            return sought.has_vlan([&parsed.vlan, &VlanStack::default()]);
        };
        let fragment = fragment_of(&parsed);
        if let Some(fragment) = fragment.filter(|_| parsed.is_later_fragment()) {
            return self.datagrams.get(&fragment).copied().unwrap_or(false);
        }
        let is_inside = find_inner(&parsed, data, &mut |inside| {
            sought.is_inside(key, &parsed.vlan, inside)
        });
        if let Some(fragment) = fragment {
            self.datagrams.insert(fragment, is_inside);
        }
        is_inside
    }
}

/// Whether a frame may be the alert's frame, by direction and by ICMP type and code. The caller
/// compares the stamps.
pub(crate) fn is_alerted(alert: &Alert, link_type: LinkType, data: &[u8]) -> bool {
    let Some(tuple) = alert.tuple else {
        return true;
    };
    let parsed = parse(link_type, data);
    let is_it = |parsed: &Parsed| goes(&tuple, parsed) && has_icmp(alert, parsed);
    is_it(&parsed)
        || alert.tunnel.is_some() && find_inner(&parsed, data, &mut |it| is_it(&it.parsed))
}

/// Whether a packet matches the tuple in the tuple's direction. Ports are compared only if both
/// have ports.
fn goes(tuple: &Tuple, parsed: &Parsed) -> bool {
    let Some(ip) = parsed.network else {
        return false;
    };
    let fragment = ip.fragment.map(|fragment| fragment.proto);
    let ports = parsed.transport.map(|ports| (ports.src, ports.dst));
    (ip.src, ip.dst) == (tuple.src, tuple.dst)
        && ip.proto.or(fragment) == Some(tuple.proto)
        && (tuple.ports.is_none() || ports.is_none() || ports == tuple.ports)
}

fn has_icmp(alert: &Alert, parsed: &Parsed) -> bool {
    alert.icmp.is_none() || parsed.icmp.is_none() || alert.icmp == parsed.icmp
}
