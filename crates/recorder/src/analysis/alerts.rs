//! Which packets an alert is about: what a dump of it takes, and which of them is marked.
//!
//! The flow of the packets on the wire is found as any other (`$flow`, by look-up in the rule set of all dumps); what pcap-filter(7) and `$flow`
//! do not tell apart (VLAN stacks, what is inside a tunnel, names of interfaces) only those are compared by.

use std::{fmt, net::IpAddr, sync::Arc};

use retroscope_alert::{Alert, Tuple};
use retroscope_filter::{Filled, FilterError, KnownFlow, Template};
use retroscope_packet::{
    Datagrams, FlowKey, Inner, LinkType, Parsed, VlanStack, flow_of, fragment_of, inner, parse,
};

use crate::intake::interfaces::RecordedInterface;

/// VLAN tags that Suricata tells of: what is behind them, it does not.
const VLAN_LAYERS: usize = 3;

/// Which packets a dump of an alert takes. Two that are equal have one dump.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct AlertScope {
    /// On the wire.
    outer: OuterScope,
    /// In a tunnel: of what is inside.
    inner: Option<FlowKey>,
    /// Identifiers, outer to inner; `None`: any.
    vlan: Option<Vec<u16>>,
    /// By name; `None`: all.
    interface: Option<Arc<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum OuterScope {
    Flow(FlowKey),
    Hosts(Vec<IpAddr>),
    Everything,
}

impl AlertScope {
    /// `interface`: the alert's, where one of that name is recorded.
    pub(crate) fn new(alert: &Alert, interface: Option<Arc<str>>) -> Self {
        let (outer, inner) = match (alert.tuple, alert.tunnel) {
            // Source ports of VXLAN and Geneve spread flows, and are others for each direction: between the two ends of the tunnel.
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

    /// Whether it takes all packets, or those of an interface: as many as there are.
    pub(crate) fn is_window(&self) -> bool {
        self.outer == OuterScope::Everything
    }

    /// Where packets are found that [`ScopeFilter::takes`] is to be asked about.
    pub(crate) fn filled(&self) -> Result<Filled, FilterError> {
        match &self.outer {
            OuterScope::Flow(key) => Template::parse("$flow")?.filled_for(&KnownFlow::Key(*key)),
            OuterScope::Hosts(hosts) => {
                let hosts = hosts.iter().map(|host| format!("host {host}"));
                let one = hosts.collect::<Vec<_>>().join(" and ");
                // Under no tag, one, or two: each `vlan` moves what follows it.
                let tagged = format!("({one}) or (vlan and (({one}) or (vlan and {one})))");
                Template::parse(&tagged)?.into_plain()
            }
            OuterScope::Everything => Template::parse("")?.into_plain(),
        }
    }

    fn is_narrow(&self) -> bool {
        self.inner.is_some() || self.vlan.is_some() || self.interface.is_some()
    }

    /// Whether the headers are of the flow inside, under its VLAN stack, which goes on where `outer` ends.
    fn is_inside(&self, key: FlowKey, outer: &VlanStack, inside: &Inner<'_>) -> bool {
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

/// As a dump's expression says it, behind what finds the packets.
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

/// Whether a packet is of a flow. Where there are no ports (later fragments, alerts of fragments), as far as addresses and protocol tell.
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

/// What decides about packets that were found, with what it learned of datagrams that carry a tunnel.
#[derive(Debug, Clone)]
pub(crate) struct ScopeFilter {
    sought: Arc<AlertScope>,
    /// Of the outer packets: whether their first fragment carries the flow.
    datagrams: Datagrams<bool>,
}

impl ScopeFilter {
    /// `None`: whatever is found is taken.
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
        let is_inside = inner(&parsed, data, &mut |inside| {
            sought.is_inside(key, &parsed.vlan, inside)
        });
        if let Some(fragment) = fragment {
            self.datagrams.insert(fragment, is_inside);
        }
        is_inside
    }
}

/// Whether a frame that a dump of an alert takes, and that has its stamp, is the alerted one.
pub(crate) fn is_alerted(alert: &Alert, link_type: LinkType, data: &[u8]) -> bool {
    let Some(tuple) = alert.tuple else {
        return true;
    };
    let parsed = parse(link_type, data);
    let is_it = |parsed: &Parsed| goes(&tuple, parsed) && has_icmp(alert, parsed);
    is_it(&parsed) || alert.tunnel.is_some() && inner(&parsed, data, &mut |it| is_it(&it.parsed))
}

/// In the direction of the tuple.
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
