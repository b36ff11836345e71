//! Addresses, pairs of addresses and networks for scripts: conversion between text and the 32-bit
//! words in which Lua gets addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use mlua::{Lua, Table, Value};

use crate::error::kind;

/// Two IP addresses of the same version, in any order. All packets between these addresses are
/// packets of the pair.
pub type AddressPair = [IpAddr; 2];

/// A call `partition.join(to, pair)` of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairJoin {
    /// The pair whose shard gets the packets of `pair`.
    pub to: AddressPair,
    /// The pair whose packets move to the shard of `to`.
    pub pair: AddressPair,
}

/// The reason why a value is not a pair of addresses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PairError {
    /// The script uses `join` wrongly, so the call raises an error.
    Misuse(String),
    /// A text is no address, or the two addresses differ in their IP version. The text may be from
    /// a packet, so the call only returns this reason.
    Text(String),
}

/// The pair in a table such as `{ pkt:src(), pkt:dst() }`.
pub(crate) fn pair(value: &Value) -> Result<AddressPair, PairError> {
    let misuse = |found: &str| {
        let expected = "partition.join: a pair is a table of two addresses as strings";
        PairError::Misuse(format!(
            "{expected}, such as {{ pkt:src(), pkt:dst() }}, not {found}"
        ))
    };
    let Value::Table(table) = value else {
        return Err(misuse(kind(value)));
    };
    if table.raw_len() > 2 {
        return Err(misuse("a table of more values"));
    }
    let address = |at: i64| match table.raw_get(at) {
        Ok(Value::String(text)) => {
            let text: String = text.to_string_lossy().chars().take(64).collect();
            let wrong = format!("'{}' is not an IP address", text.escape_debug());
            text.parse::<IpAddr>().map_err(|_| PairError::Text(wrong))
        }
        Ok(other) => Err(misuse(&format!("a table with {}", kind(&other)))),
        Err(error) => Err(misuse(&error.to_string())),
    };
    let pair = [address(1)?, address(2)?];
    if pair[0].is_ipv4() == pair[1].is_ipv4() {
        return Ok(pair);
    }
    let mixed = format!("{} and {} are of different IP versions", pair[0], pair[1]);
    Err(PairError::Text(mixed))
}

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
