//! Checked reads of network-order integers.

use super::ParseStop;

#[inline]
pub(super) fn array<const N: usize>(data: &[u8], at: usize) -> Result<[u8; N], ParseStop> {
    data.get(at..)
        .and_then(|rest| rest.first_chunk())
        .copied()
        .ok_or(ParseStop::Truncated)
}

#[inline]
pub(super) fn u8_at(data: &[u8], at: usize) -> Result<u8, ParseStop> {
    data.get(at).copied().ok_or(ParseStop::Truncated)
}

#[inline]
pub(super) fn u16_at(data: &[u8], at: usize) -> Result<u16, ParseStop> {
    array(data, at).map(u16::from_be_bytes)
}

#[inline]
pub(super) fn u32_at(data: &[u8], at: usize) -> Result<u32, ParseStop> {
    array(data, at).map(u32::from_be_bytes)
}

/// Returns `at` if the first `at` bytes were captured.
#[inline]
pub(super) fn within(data: &[u8], at: usize) -> Result<usize, ParseStop> {
    if at <= data.len() {
        Ok(at)
    } else {
        Err(ParseStop::Truncated)
    }
}
