//! The links of a network namespace, and the links on top of one link.
//!
//! A link is on top of another link in two ways. The first is as its master (`IFLA_MASTER`: bridge,
//! bond, team, Open vSwitch, VRF). The second is as an upper link that names the lower link
//! (`IFLA_LINK`: VLAN, macvlan, ipvlan, MACsec, a tunnel). VXLAN and HSR name the lower link among
//! the data of their kind. In some kinds of pairs both ends name each other by `IFLA_LINK`, and
//! neither end is on top. Values are from `linux/if_link.h`.

use std::collections::{BTreeSet, VecDeque};

use crate::netlink::{
    LINK_BYTES, LINK_NAME, NEW_LINK, NetlinkMessage, attributes, until_nul, word,
};

/// `IFLA_LINK`, `IFLA_MASTER`, `IFLA_LINKINFO`, `IFLA_LINK_NETNSID`.
const LOWER: u16 = 5;
const MASTER: u16 = 10;
const INFO: u16 = 18;
const LOWER_NAMESPACE: u16 = 37;

/// Attributes inside `IFLA_LINKINFO`: `IFLA_INFO_KIND`, `IFLA_INFO_DATA`.
const KIND: u16 = 1;
const DATA: u16 = 2;

/// Kinds whose `IFLA_LINK` is the other end of a pair.
const PAIRS: [&str; 3] = ["veth", "netkit", "vxcan"];

/// Kinds that name interfaces among their data, with the attributes: `IFLA_VXLAN_LINK`,
/// `IFLA_HSR_SLAVE1` and `IFLA_HSR_SLAVE2`.
const NAMED_IN_DATA: [(&str, &[u16]); 2] = [("vxlan", &[3]), ("hsr", &[1, 2])];

/// An interface in the kernel's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostLink {
    pub(super) index: u32,
    /// Name for people: characters that a terminal would interpret are escaped.
    pub(super) name: String,
    /// Kind such as `vlan` or `bridge`; empty if the kernel reports no kind, as for a NIC.
    pub(super) kind: String,
    pub(super) master: Option<u32>,
    /// Indexes of the interfaces directly below, in the interface's own network namespace.
    lowers: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UpperLink {
    /// Whether this link is the interface's own master.
    pub(super) is_master: bool,
    pub(super) name: String,
    pub(super) kind: String,
}

impl HostLink {
    /// Reads a link of a list; `None`: the message is damaged.
    pub(super) fn read(message: NetlinkMessage<'_>) -> Option<Option<Self>> {
        let (fixed, found) = message.parts(NEW_LINK, LINK_BYTES)?;
        let index = word(fixed, 4)?;
        let number = |wanted| match found.get(&wanted) {
            Some(value) => word(value, 0).map(Some),
            None => Some(None),
        };
        let info = attributes(found.get(&INFO).copied().unwrap_or_default())?;
        let kind = text(info.get(&KIND).copied().unwrap_or_default());
        let lower = number(LOWER)?.filter(|_| !PAIRS.contains(&kind.as_str()));
        let mut lowers = Vec::from_iter(lower);
        for (_, places) in NAMED_IN_DATA.iter().filter(|(one, _)| *one == kind) {
            let data = attributes(info.get(&DATA).copied().unwrap_or_default())?;
            for value in places.iter().filter_map(|place| data.get(place)) {
                lowers.push(word(value, 0)?);
            }
        }
        // A link without a lower interface may name itself, or index 0. An index of another
        // namespace belongs to another interface.
        let is_here = number(LOWER_NAMESPACE)?.is_none();
        lowers.retain(|lower| is_here && *lower != 0 && *lower != index);
        Some(Some(Self {
            index,
            name: text(found.get(&LINK_NAME)?),
            kind,
            master: number(MASTER)?.filter(|master| *master != 0),
            lowers,
        }))
    }

    fn is_on(&self, index: u32) -> bool {
        self.lowers.contains(&index)
    }
}

/// All links on top of the interface with this index, nearest links first.
pub(super) fn upper_links(links: &[HostLink], index: u32) -> Vec<UpperLink> {
    let mut found = Vec::new();
    // `seen` ends the search if damaged data forms a loop.
    let mut seen = BTreeSet::from([index]);
    let mut below = VecDeque::from([index]);
    while let Some(lower) = below.pop_front() {
        let of_it = links.iter().find(|link| link.index == lower);
        let master = of_it.and_then(|link| link.master);
        let uppers = links.iter().filter(|link| link.is_on(lower));
        for upper in master.into_iter().chain(uppers.map(|link| link.index)) {
            if !seen.insert(upper) {
                continue;
            }
            below.push_back(upper);
            let link = links.iter().find(|link| link.index == upper);
            found.push(UpperLink {
                is_master: lower == index && master == Some(upper),
                name: link.map_or_else(|| format!("interface {upper}"), |link| link.name.clone()),
                kind: link.map(|link| link.kind.clone()).unwrap_or_default(),
            });
        }
    }
    found
}

/// A C string for people: an interface name may contain control characters of a terminal.
fn text(value: &[u8]) -> String {
    until_nul(value).escape_debug().to_string()
}

#[cfg(test)]
mod tests;
