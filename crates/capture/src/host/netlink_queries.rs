//! Queries about an interface in a network namespace: addresses, routes, and interfaces on top of
//! the interface.
//!
//! The answers do not depend on `/proc`, which may be inaccessible, or on `/sys`, which shows the
//! namespace of the process that mounted sysfs. An incomplete list is an error.

use std::io;

use super::{HostUse, links};
use crate::{
    af_packet::sys::InterfaceQuery,
    host::links::HostLink,
    netlink::{Netlink, NetlinkMessage, NetlinkRequest, link_request, word},
};

/// Message types of `linux/rtnetlink.h`.
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;

/// Bytes of `struct ifaddrmsg` and of `struct rtmsg`.
const ADDRESS: usize = 8;
const ROUTE: usize = 12;

/// `IFA_ADDRESS`, `IFA_LOCAL`; `RTA_DST`, `RTA_OIF`; `RTM_F_CLONED`.
const ADDRESS_BYTES: u16 = 1;
const LOCAL_BYTES: u16 = 2;
const DESTINATION: u16 = 1;
const LEAVES_BY: u16 = 4;
const CLONED: u32 = 0x200;

const IPV4: u8 = 2;
const IPV6: u8 = 10;

impl HostUse {
    /// Queries what the host uses the interface `name` for, in the calling thread's network
    /// namespace. Needs no privilege.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let mut found = Self::default();
        let index = InterfaceQuery::new().and_then(|query| query.index(name));
        let Some(index) = found.read("its index", index.map(i32::cast_unsigned)) else {
            return found;
        };
        let Some(mut netlink) = found.read("what it is used for", Netlink::strict()) else {
            return found;
        };
        let has_address = has_address(&mut netlink, index);
        found.has_address = found.read("its addresses", has_address) == Some(true);
        let has_route = has_route(&mut netlink, index);
        found.has_route = found.read("its routes", has_route) == Some(true);
        let links = netlink.list(&link_request(0), HostLink::read);
        let links = found
            .read("the interfaces on top of it", links)
            .unwrap_or_default();
        found.upper_links = links::upper_links(&links, index);
        found
    }

    /// The value of a query. A failure is added to `unread`; `what` names the queried fact.
    fn read<T>(&mut self, what: &str, outcome: io::Result<T>) -> Option<T> {
        let note = |error| {
            self.unread.push(format!("{what} cannot be read ({error})"));
        };
        outcome.map_err(note).ok()
    }
}

/// Whether the interface has an address. Link-local addresses of IPv6 do not count, except with
/// another peer: the kernel assigns them when an interface comes up.
fn has_address(netlink: &mut Netlink, index: u32) -> io::Result<bool> {
    let mut fixed = [0; ADDRESS];
    fixed[4..8].copy_from_slice(&index.to_ne_bytes());
    let request = NetlinkRequest::new(GET_ADDRESS, &fixed);
    let found = netlink.list(&request, |message| is_address(message, index))?;
    Ok(!found.is_empty())
}

fn is_address(message: NetlinkMessage<'_>, index: u32) -> Option<Option<()>> {
    let (fixed, found) = message.parts(NEW_ADDRESS, ADDRESS)?;
    if word(fixed, 4)? != index {
        return Some(None);
    }
    // On a point-to-point link `IFA_ADDRESS` is the peer's address, and `IFA_LOCAL` is the
    // interface's address.
    let given = [ADDRESS_BYTES, LOCAL_BYTES].map(|kind| found.get(&kind));
    let mut given = given.into_iter().flatten().peekable();
    let is_own = given.peek().is_some() && given.all(|value| is_link_local(value));
    Some(match fixed[0] {
        IPV4 => Some(()),
        IPV6 if !is_own => Some(()),
        _ => None,
    })
}

/// Whether a route uses the interface. IPv6 routes to link-local and multicast addresses do not
/// count, and neither do cached copies of routes (`RTM_F_CLONED`).
fn has_route(netlink: &mut Netlink, index: u32) -> io::Result<bool> {
    for family in [IPV4, IPV6] {
        let mut fixed = [0; ROUTE];
        fixed[0] = family;
        // The kernel also lists routes with several paths and routes through a nexthop object.
        let request = NetlinkRequest::new(GET_ROUTE, &fixed).with(LEAVES_BY, &index.to_ne_bytes());
        if !netlink.list(&request, is_route)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_route(message: NetlinkMessage<'_>) -> Option<Option<()>> {
    let (fixed, found) = message.parts(NEW_ROUTE, ROUTE)?;
    if word(fixed, 8)? & CLONED != 0 {
        return Some(None);
    }
    let destination = found.get(&DESTINATION);
    let is_own = destination.is_some_and(|to| is_link_local(to) || to.first() == Some(&0xff));
    Some((fixed[0] != IPV6 || !is_own).then_some(()))
}

/// `fe80::/10`.
fn is_link_local(address: &[u8]) -> bool {
    address.len() == 16 && address[0] == 0xfe && address[1] & 0xc0 == 0x80
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::tests;

    fn address(family: u8, index: u32, value: &[u8]) -> bool {
        counts(family, index, value, None)
    }

    fn counts(family: u8, index: u32, value: &[u8], local: Option<&[u8]>) -> bool {
        let mut fixed = [0; ADDRESS];
        fixed[0] = family;
        fixed[4..8].copy_from_slice(&index.to_ne_bytes());
        let mut body = NetlinkRequest::new(NEW_ADDRESS, &fixed).with(ADDRESS_BYTES, value);
        if let Some(local) = local {
            body = body.with(LOCAL_BYTES, local);
        }
        let bytes = tests::message(NEW_ADDRESS, 1, &body);
        let message = tests::first(&bytes).unwrap();
        is_address(message, 3).unwrap().is_some()
    }

    fn route(family: u8, destination: Option<&[u8]>, flags: u32) -> bool {
        let mut fixed = [0; ROUTE];
        fixed[0] = family;
        fixed[8..12].copy_from_slice(&flags.to_ne_bytes());
        let mut body = NetlinkRequest::new(NEW_ROUTE, &fixed);
        if let Some(destination) = destination {
            body = body.with(DESTINATION, destination);
        }
        let bytes = tests::message(NEW_ROUTE, 1, &body);
        is_route(tests::first(&bytes).unwrap()).unwrap().is_some()
    }

    /// An IPv6 address with these first two octets; the other octets are 0.
    fn version6(first: u8, second: u8) -> [u8; 16] {
        let mut octets = [0; 16];
        [octets[0], octets[1]] = [first, second];
        octets
    }

    #[test]
    fn every_address_but_link_local_ones_of_ipv6_counts() {
        assert!(address(IPV4, 3, &[10, 9, 0, 1]));
        assert!(address(IPV4, 3, &[0xfe, 0x80, 0, 1]), "254.128.0.1");
        assert!(address(IPV6, 3, &version6(0x20, 1)));
        assert!(!address(IPV6, 3, &version6(0xfe, 0xbf)));
        assert!(address(IPV6, 3, &version6(0xfe, 0xc0)));
        assert!(!address(IPV4, 4, &[10, 9, 0, 1]), "another interface's");
        let [own, global] = [version6(0xfe, 0x80), version6(0x20, 1)];
        assert!(counts(IPV6, 3, &own, Some(&global)), "with such a peer");
        assert!(counts(IPV6, 3, &global, Some(&own)));
        assert!(!counts(IPV6, 3, &own, Some(&own)));
    }

    #[test]
    fn every_route_but_an_interfaces_own_ones_counts() {
        assert!(route(IPV4, Some(&[10, 7, 0, 0]), 0));
        assert!(route(IPV4, Some(&[255, 0, 0, 0]), 0));
        assert!(route(IPV4, None, 0), "the default route");
        assert!(route(IPV6, None, 0));
        assert!(route(IPV6, Some(&version6(0x20, 1)), 0));
        assert!(!route(IPV6, Some(&version6(0xfe, 0x80)), 0));
        assert!(!route(IPV6, Some(&version6(0xff, 2)), 0));
        assert!(!route(IPV4, Some(&[10, 7, 0, 0]), CLONED));
    }

    #[test]
    fn the_loopback_interface_of_this_host_is_read() {
        let found = HostUse::of("lo");
        assert_eq!(found.unread, [""; 0]);
        let missing = HostUse::of("no-such-if");
        assert!(missing.is_used());
        assert_eq!(missing.unread.len(), 1, "{missing}");
    }
}
