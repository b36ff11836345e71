//! Counts and summarizes generated packets.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    path::Path,
    time::Duration,
};

use retroscope_generate::TRIGGER_PORT;
use retroscope_recorder::rfc3339;
use serde_json::{Value, json};

use crate::units::counted;

/// Counts of the sent or written packets.
#[derive(Debug, Default)]
pub(super) struct Generated {
    pub(super) packets: u64,
    bytes: u64,
    /// Timestamps of the first and last packet, in ns since the UNIX epoch.
    first_ns: i64,
    last_ns: i64,
    /// Duration of sending on the monotonic clock. `None` for a file, which has only packet time.
    pub(super) sending_ns: Option<i64>,
    /// Attempts to send that failed because the interface had no room or refused a frame. With
    /// AF_XDP, interrupted attempts without a sent frame count too. `None` for a file.
    pub(super) retries: Option<u64>,
    /// Engine that sent the packets. `None` for a file.
    pub(super) engine: Option<&'static str>,
    trigger: Option<TriggerSent>,
}

/// The trigger packet. Its addresses are parsed from its bytes.
#[derive(Debug)]
struct TriggerSent {
    time_ns: i64,
    /// Number of packets before the trigger packet.
    sequence: u64,
    source: SocketAddrV4,
    destination: SocketAddrV4,
}

impl Generated {
    /// Counts a frame of the generator: Ethernet, IPv4 without options, UDP.
    pub(super) fn add(&mut self, time_ns: i64, frame: &[u8]) {
        if self.packets == 0 {
            self.first_ns = time_ns;
        }
        self.last_ns = time_ns;
        if frame[36..38] == TRIGGER_PORT.to_be_bytes() {
            let address = |at: usize, port_at: usize| {
                let ip = Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3]);
                SocketAddrV4::new(ip, u16::from_be_bytes([frame[port_at], frame[port_at + 1]]))
            };
            self.trigger = Some(TriggerSent {
                time_ns,
                sequence: self.packets,
                source: address(26, 34),
                destination: address(30, 36),
            });
        }
        self.packets += 1;
        self.bytes += frame.len() as u64;
    }

    fn seconds(&self) -> f64 {
        self.sending_ns.unwrap_or(self.last_ns - self.first_ns) as f64 / 1e9
    }

    /// The summary for a person. `interface`: where the packets were sent; `due`: planned time of
    /// the trigger packet after the start.
    pub(super) fn line(&self, interface: Option<&str>, due: Option<Duration>) -> String {
        let seconds = self.seconds();
        let per_second = |amount: u64| {
            if seconds > 0.0 {
                amount as f64 / seconds
            } else {
                0.0
            }
        };
        let packets = counted(self.packets, "packet");
        let what = match interface {
            Some(interface) => format!("sent {packets} on {interface}"),
            None => format!("wrote {packets}"),
        };
        let trigger = match (&self.trigger, due) {
            (Some(trigger), _) => {
                let (source, destination) = (trigger.source, trigger.destination);
                format!(
                    "; trigger {source} > {destination} at {}",
                    rfc3339(trigger.time_ns)
                )
            }
            (None, Some(due)) => format!("; no trigger packet, it was due after {due:?}"),
            (None, None) => String::new(),
        };
        format!(
            "{what} in {seconds:.3} s ({:.0} pps, {:.1} Mbit/s){trigger}",
            per_second(self.packets),
            per_second(self.bytes) * 8.0 / 1e6
        )
    }

    /// The summary for a program. `file`: where the packets were written.
    pub(super) fn json(&self, interface: Option<&str>, file: Option<&Path>) -> Value {
        let trigger = self.trigger.as_ref().map(|trigger| {
            json!({
                "time": rfc3339(trigger.time_ns),
                "sequence": trigger.sequence,
                "source_ip": trigger.source.ip().to_string(),
                "source_port": trigger.source.port(),
                "destination_ip": trigger.destination.ip().to_string(),
                "destination_port": trigger.destination.port(),
            })
        });
        json!({
            "packets": self.packets,
            "bytes": self.bytes,
            "seconds": self.seconds(),
            "interface": interface,
            "file": file,
            "retries": self.retries,
            "engine": self.engine,
            "trigger": trigger,
        })
    }
}
