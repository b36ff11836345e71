//! Addresses and networks for scripts: conversion between text and the 32-bit words in which Lua
//! gets addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use mlua::{Lua, Table};

/// An address as text, from its IP version 4 or 6 and its words.
pub(crate) fn text(_: &Lua, (ip, a, b, c, d): (u8, u32, u32, u32, u32)) -> mlua::Result<String> {
    let words = [a, b, c, d].into_iter();
    let bits = words.fold(0, |bits, word| bits << 32 | u128::from(word));
    Ok(from_bits(ip, bits).to_string())
}

/// An address from its IP version and its bits. An IPv4 address is in the upper 32 bits.
fn from_bits(ip: u8, bits: u128) -> IpAddr {
    match ip {
        4 => Ipv4Addr::from_bits(u32::try_from(bits >> 96).unwrap_or(0)).into(),
        _ => Ipv6Addr::from_bits(bits).into(),
    }
}

/// The result of `net("10.0.0.0/8")`: the IP version, the text, and address and mask as words for
/// LuaJIT's bit operations, which are signed.
pub(crate) fn network(lua: &Lua, text: String) -> mlua::Result<Table> {
    let wrong = || mlua::Error::runtime(format!("net(\"{text}\"): not an address or a network"));
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text.as_str(), None),
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let (ip, bits, width) = match address {
        IpAddr::V4(address) => (4, u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (6, address.to_bits(), 128),
    };
    let prefix: u32 = match prefix {
        Some(prefix) => prefix
            .parse()
            .ok()
            .filter(|n| *n <= width)
            .ok_or_else(wrong)?,
        None => width,
    };
    let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
    let net = lua.create_table()?;
    net.set("ip", ip)?;
    net.set("text", format!("{}/{prefix}", from_bits(ip, bits & mask)))?;
    net.set("mask", words(mask))?;
    net.set("address", words(bits & mask))?;
    Ok(net)
}

/// The words of an address, in order.
fn words(bits: u128) -> [i32; 4] {
    let bytes = bits.to_be_bytes();
    std::array::from_fn(|n| {
        let at = 4 * n;
        i32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    })
}
