//! Prints the blocks of little-endian pcapng files as text, so that diff(1) can compare two files:
//! `pcapng_text FILE…`.
//!
//! A `packet` line has the stamp, the interface, the lengths and a digest of the data. The next
//! line has the packet's options, if there are options. A section, an interface and a statistics
//! block have one line with their options. Any other block has one line with its type and its body.

#![allow(clippy::print_stdout, reason = "a program that prints")]

use std::{
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    io,
};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
/// The option `epb_packetid`.
const PACKET_ID: u16 = 5;

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_le_bytes(bytes.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// The options as `code=text`, escaped by `escape_ascii`. Of a packet's identifier
/// (`epb_packetid`), only the record number: the lower 48 bits, in decimal.
fn options(mut bytes: &[u8], is_packet: bool) -> String {
    let mut text = String::new();
    while let (Some(code @ 1..), Some(length)) = (u16_at(bytes, 0), u16_at(bytes, 2)) {
        let length = usize::from(length);
        let value = bytes.get(4..4 + length).unwrap_or_default();
        match <[u8; 8]>::try_from(value) {
            // The upper 16 bits are the producer combined with bits of the recording's UUID, which
            // differs in each recording.
            Ok(id) if code == PACKET_ID && is_packet => {
                text += &format!(" {code}={}", u64::from_le_bytes(id) << 16 >> 16);
            }
            _ => text += &format!(" {code}={}", value.escape_ascii()),
        }
        bytes = bytes
            .get(4 + length.next_multiple_of(4)..)
            .unwrap_or_default();
    }
    text
}

fn packet(body: &[u8]) -> Option<()> {
    let at = |at| u32_at(body, at);
    let (interface, captured, wire) = (at(0)?, at(12)?, at(16)?);
    let stamp = u64::from(at(4)?) << 32 | u64::from(at(8)?);
    let length = usize::try_from(captured).ok()?;
    let mut digest = DefaultHasher::new();
    body.get(20..20 + length)?.hash(&mut digest);
    let digest = digest.finish();
    println!("packet {stamp} {interface} {captured} {wire} {digest:016x}");
    let options = options(body.get(20 + length.next_multiple_of(4)..)?, true);
    if !options.is_empty() {
        println!("of packet {stamp}:{options}");
    }
    Some(())
}

fn block(kind: u32, body: &[u8]) -> Option<()> {
    match kind {
        PACKET => packet(body)?,
        SECTION => println!("section{}", options(body.get(16..)?, false)),
        INTERFACE => {
            let (link, snaplen) = (u16_at(body, 0)?, u32_at(body, 4)?);
            println!(
                "interface {link} {snaplen}{}",
                options(body.get(8..)?, false)
            );
        }
        STATISTICS => println!("statistics{}", options(body.get(12..)?, false)),
        other => println!("block {other} {}", body.escape_ascii()),
    }
    Some(())
}

fn main() -> io::Result<()> {
    for path in env::args_os().skip(1) {
        let bytes = fs::read(&path)?;
        let mut rest = &bytes[..];
        while let (Some(kind), Some(length)) = (u32_at(rest, 0), u32_at(rest, 4)) {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let Some(body) = rest.get(8..length.saturating_sub(4)) else {
                break;
            };
            if block(kind, body).is_none() {
                println!("torn {kind}");
            }
            rest = &rest[length..];
        }
        if !rest.is_empty() {
            println!("{} bytes behind the blocks", rest.len());
        }
    }
    Ok(())
}
