//! Whether packets get the time stamps of the NIC.
//!
//! A NIC stamps packets by its own PTP hardware clock. Ring time, windows and watermarks use the
//! system's clock. Another program, such as phc2sys, must synchronize the two clocks. So a stamp of
//! the NIC must be within [`NIC_AHEAD_NS_MAX`] and [`NIC_BEHIND_NS_MAX`] of the packet's time on
//! the system's clock. AF_PACKET knows this time only roughly: between the opening of the packet's
//! block and the fetch of the block. The stamp must also not be older than the queue's watermark.
//! AF_PACKET and AF_XDP use no other stamp of the NIC.
//!
//! Which packets a NIC stamps is a setting of the whole NIC. [`TimeStamps::Auto`] never changes the
//! setting. [`TimeStamps::Hardware`] changes only the setting "no packets". A setting for some
//! packets belongs to another program, usually ptp4l, which could lose its stamps.

use std::{fmt, io};

use crate::{
    SourceError, af_packet::sys::InterfaceQuery, clock::SECOND_NS, interface::NamedInterface,
    netlink::Netlink,
};

/// How far a NIC's stamp may be after the system's time of the packet, ns. The NIC stamps a packet
/// before the kernel or the XDP program does, so only an inexact synchronization of the clocks
/// makes such stamps.
pub(crate) const NIC_AHEAD_NS_MAX: i64 = 1_000_000;

/// How far a NIC's stamp may be before the system's time of the packet, ns. A packet waits in the
/// NIC's receive ring until the driver fetches the packet: usually less than 1 ms, under overload
/// some ms.
pub(crate) const NIC_BEHIND_NS_MAX: i64 = 10_000_000;

/// The time stamps that the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimeStamps {
    /// The NIC's stamps if the NIC is set to stamp all received packets and the engine can get the
    /// stamps, otherwise as [`Self::Kernel`].
    #[default]
    Auto,
    /// The NIC's stamps. If the NIC can stamp all received packets but stamps none, the engine
    /// turns these stamps on. The NIC keeps this setting.
    Hardware,
    /// The kernel's stamps; with AF_XDP, the stamps of the XDP program.
    Kernel,
}

/// The setting of a NIC's stamps: `struct hwtstamp_config` of `linux/net_tstamp.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub(crate) struct NicStampSetting {
    flags: i32,
    /// The sent packets that the NIC stamps.
    sent: i32,
    /// The received packets that the NIC stamps: an `HWTSTAMP_FILTER_` value.
    received: i32,
}

/// `HWTSTAMP_FILTER_NONE` and `HWTSTAMP_FILTER_ALL`.
const NO_PACKETS: i32 = 0;
const ALL_PACKETS: i32 = 1;

/// The decision of an engine about the stamps of a NIC.
#[derive(Debug, PartialEq, Eq)]
enum StampChoice {
    UseKernel,
    UseNic,
    /// Changes the NIC's setting to this setting, and uses the NIC's stamps.
    TurnOn(NicStampSetting),
    /// Refuses the recording, for this reason.
    Refuse(String),
}

impl TimeStamps {
    /// Whether the sockets of an interface take the NIC's stamps. Changes the NIC's setting if
    /// necessary, which needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// The stamps that [`TimeStamps::Hardware`] requires do not exist, or cannot be turned on.
    pub(crate) fn prepare(self, interface: &NamedInterface) -> Result<bool, SourceError> {
        let (query, name) = (&interface.query, interface.name.as_str());
        let stamps_all = query.ethtool_received_stamps(name).is_ok_and(stamps_all);
        match self.choose(name, stamps_all, query.nic_stamp_setting(name)) {
            StampChoice::UseKernel => Ok(false),
            StampChoice::UseNic => Ok(true),
            StampChoice::Refuse(why) => Err(no_stamps(name, why)),
            StampChoice::TurnOn(setting) => match query.set_nic_stamp_setting(name, setting) {
                Ok(()) => Ok(true),
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                    let message = format!(
                        "no permission to turn on the time stamps of {name}: sudo {}",
                        advice(name, setting)
                    );
                    Err(SourceError::Permission(message))
                }
                Err(error) => Err(interface.error("ioctl(SIOCSHWTSTAMP)", error)),
            },
        }
    }

    /// As [`Self::prepare`], for an XDP program, which gets the NIC's stamps from the driver. The
    /// second value is a notice, if [`TimeStamps::Auto`] would use the NIC's stamps and the driver
    /// gives XDP programs no stamps.
    pub(crate) fn prepare_xdp(
        self,
        interface: &NamedInterface,
        index: i32,
    ) -> Result<(bool, Option<String>), SourceError> {
        let (query, name) = (&interface.query, interface.name.as_str());
        let is_given = || Netlink::gives_xdp_stamps(index).unwrap_or(false);
        match self {
            Self::Hardware if !is_given() => Err(no_stamps(name, DRIVER_GIVES_NONE)),
            // The driver of a virtual interface may give stamps that it cannot turn on.
            Self::Hardware if query.ethtool_received_stamps(name).is_ok_and(stamps_all) => {
                Ok((self.prepare(interface)?, None))
            }
            Self::Hardware => Ok((true, None)),
            _ if !self.prepare(interface)? => Ok((false, None)),
            _ if is_given() => Ok((true, None)),
            _ => Ok((
                false,
                Some(format!(
                    "{name}: {DRIVER_GIVES_NONE}, although the NIC stamps packets"
                )),
            )),
        }
    }

    /// `stamps_all`: the NIC can stamp all received packets.
    fn choose(
        self,
        name: &str,
        stamps_all: bool,
        setting: io::Result<NicStampSetting>,
    ) -> StampChoice {
        let received = setting.as_ref().map_or(NO_PACKETS, |it| it.received);
        match (self, setting) {
            (Self::Kernel, _) => StampChoice::UseKernel,
            _ if received == ALL_PACKETS => StampChoice::UseNic,
            (Self::Auto, _) => StampChoice::UseKernel,
            _ if !stamps_all => {
                let why = format!("it cannot stamp all received packets (ethtool -T {name})");
                StampChoice::Refuse(why)
            }
            // The driver does not report the setting. Turning the stamps on could overwrite the
            // setting of another program.
            (Self::Hardware, Err(error)) => {
                let why = format!("its driver does not report whether it stamps packets: {error}");
                StampChoice::Refuse(why)
            }
            (Self::Hardware, Ok(setting)) => {
                let wanted = NicStampSetting {
                    received: ALL_PACKETS,
                    ..setting
                };
                if received == NO_PACKETS {
                    return StampChoice::TurnOn(wanted);
                }
                StampChoice::Refuse(format!(
                    "another program, such as ptp4l, has set it to stamp some packets only: sudo {}",
                    advice(name, wanted)
                ))
            }
        }
    }
}

/// Why an XDP program cannot get the NIC's stamps.
const DRIVER_GIVES_NONE: &str = "its driver gives XDP programs no stamps of the NIC";

/// Whether a NIC can stamp all received packets. `filters` has a bit for each `HWTSTAMP_FILTER_`
/// value.
fn stamps_all(filters: u32) -> bool {
    filters & 1 << ALL_PACKETS != 0
}

/// Whether the driver reports that the NIC stamps all received packets now. `None`: the driver does
/// not report that the NIC can stamp all packets.
pub(crate) fn stamps_all_now(query: &InterfaceQuery, name: &str) -> Option<bool> {
    let filters = query.ethtool_received_stamps(name).ok()?;
    let setting = query.nic_stamp_setting(name);
    let is_on = setting.is_ok_and(|setting| setting.received == ALL_PACKETS);
    stamps_all(filters).then_some(is_on)
}

/// Says how far a stamp of the NIC is from the system's clock.
pub(crate) fn disagreement(ahead_ns: i64) -> String {
    let way = if ahead_ns < 0 { "behind" } else { "ahead of" };
    let seconds = ahead_ns.unsigned_abs() as f64 / SECOND_NS as f64;
    format!(
        "the NIC's clock is {seconds:.3} s {way} the system's clock (phc2sys synchronizes both)"
    )
}

/// The command of linuxptp that makes a setting.
fn advice(name: &str, setting: NicStampSetting) -> String {
    format!(
        "hwstamp_ctl -i {name} -t {} -r {}",
        setting.sent, setting.received
    )
}

/// The error for an interface without the stamps that [`TimeStamps::Hardware`] requires.
pub(crate) fn no_stamps(name: &str, why: impl fmt::Display) -> SourceError {
    SourceError::Unsupported(format!(
        "{name} gives no hardware time stamps: {why}; time-stamps = \"auto\" needs none"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(received: i32) -> NicStampSetting {
        NicStampSetting {
            flags: 0,
            sent: 1,
            received,
        }
    }

    #[test]
    fn auto_takes_what_is_on_and_changes_nothing() {
        let choose = |received| TimeStamps::Auto.choose("eth0", true, Ok(setting(received)));
        assert_eq!(choose(ALL_PACKETS), StampChoice::UseNic);
        for received in [NO_PACKETS, 2, 12] {
            assert_eq!(choose(received), StampChoice::UseKernel);
        }
        let error = Err(io::ErrorKind::Unsupported.into());
        let choice = TimeStamps::Auto.choose("eth0", true, error);
        assert_eq!(choice, StampChoice::UseKernel);
        let choice = TimeStamps::Kernel.choose("eth0", true, Ok(setting(ALL_PACKETS)));
        assert_eq!(choice, StampChoice::UseKernel);
    }

    /// A setting for PTP packets alone, such as that of ptp4l, stays. The setting for sent packets
    /// never changes.
    #[test]
    fn hardware_turns_on_only_what_nobody_uses() {
        let choose = |stamps_all, setting| TimeStamps::Hardware.choose("eth0", stamps_all, setting);
        let refusal = |choice| match choice {
            StampChoice::Refuse(why) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(choose(false, Ok(setting(ALL_PACKETS))), StampChoice::UseNic);
        assert_eq!(
            choose(true, Ok(setting(NO_PACKETS))),
            StampChoice::TurnOn(setting(ALL_PACKETS))
        );
        let why = refusal(choose(true, Ok(setting(12))));
        assert!(why.ends_with("sudo hwstamp_ctl -i eth0 -t 1 -r 1"), "{why}");
        let why = refusal(choose(false, Ok(setting(NO_PACKETS))));
        assert!(why.contains("ethtool -T eth0"), "{why}");
        let why = refusal(choose(true, Err(io::ErrorKind::Unsupported.into())));
        assert!(why.contains("does not report"), "{why}");
    }
}
