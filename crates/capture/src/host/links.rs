//! The links of a network namespace, and what stands on one of them. Pure: what the kernel lists goes in.
//!
//! An interface stands on another one in two ways: as its master (`IFLA_MASTER`: bridge, bond, team, Open vSwitch, VRF), or as an upper
//! that names it (`IFLA_LINK`: VLAN, macvlan, ipvlan, MACsec, a tunnel; VXLAN and HSR name it among the data of their kind). Some pairs
//! name each other by `IFLA_LINK`, and neither stands on the other. Values are those of `linux/if_link.h`.

use std::collections::{BTreeSet, VecDeque};

use crate::netlink::{
    LINK_BYTES, LINK_NAME, NEW_LINK, NetlinkMessage, attributes, until_nul, word,
};

/// `IFLA_LINK`, `IFLA_MASTER`, `IFLA_LINKINFO`, `IFLA_LINK_NETNSID`.
const LOWER: u16 = 5;
const MASTER: u16 = 10;
const INFO: u16 = 18;
const LOWER_NAMESPACE: u16 = 37;

/// Inside of `IFLA_LINKINFO`: `IFLA_INFO_KIND`, `IFLA_INFO_DATA`.
const KIND: u16 = 1;
const DATA: u16 = 2;

/// Kinds whose `IFLA_LINK` is the other end of a cable.
const PAIRS: [&str; 3] = ["veth", "netkit", "vxcan"];

/// Kinds that name interfaces among their data, and by which attributes: `IFLA_VXLAN_LINK`, `IFLA_HSR_SLAVE1` and `IFLA_HSR_SLAVE2`.
const NAMED_IN_DATA: [(&str, &[u16]); 2] = [("vxlan", &[3]), ("hsr", &[1, 2])];

/// An interface as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostLink {
    pub(super) index: u32,
    /// For people: what a terminal would take for a command is escaped.
    pub(super) name: String,
    /// `vlan`, `bridge`, …; empty for a NIC.
    pub(super) kind: String,
    pub(super) master: Option<u32>,
    /// Indexes of the interfaces directly below it, in its own network namespace.
    lowers: Vec<u32>,
}

/// What stands on an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UpperLink {
    /// The interface belongs to it. Else it stands on the interface, or on something that stands there.
    pub(super) is_master: bool,
    pub(super) name: String,
    pub(super) kind: String,
}

impl HostLink {
    /// Reads a link of a list; `None`: it is damaged.
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
        // A link without a lower interface names itself. An index of another namespace names another interface.
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

    /// Whether the interface `index` is directly below it.
    fn is_on(&self, index: u32) -> bool {
        self.lowers.contains(&index)
    }
}

/// All that stands on the interface of this index, its master first, whether it is up or not: nearest first.
pub(super) fn upper_links(links: &[HostLink], index: u32) -> Vec<UpperLink> {
    let mut found = Vec::new();
    // What is damaged may go in circles.
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

/// A C string for people. Names of interfaces may hold whatever is neither white space, a slash nor a colon.
fn text(value: &[u8]) -> String {
    until_nul(value).escape_debug().to_string()
}

#[cfg(test)]
mod tests;
