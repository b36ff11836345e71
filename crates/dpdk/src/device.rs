//! Device names, as DPDK's programs accept them after `--vdev` and `-a`.

use std::str::FromStr;

use retroscope_capture::SourceError;

/// Ring arguments for a `net_af_packet` without ring arguments: 32 MiB of frames of 2048 bytes, and
/// as much to send, which the driver requires. DPDK's default of 512 frames lasts for 2.5 ms at
/// 200,000 packets per second, and the driver does not count its losses.
const RING_OF_AF_PACKET: &str = "framecnt=16384,blocksz=1048576";

/// A device and its arguments: `net_pcap0,rx_pcap=a.pcap`, `0000:03:00.0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DpdkDevice {
    pub(super) name: String,
    /// Arguments without the comma in front; may be empty.
    arguments: String,
}

impl DpdkDevice {
    /// Name and arguments.
    pub(super) fn full(&self) -> String {
        if self.arguments.is_empty() {
            return self.name.clone();
        }
        format!("{},{}", self.name, self.arguments)
    }

    /// Name and arguments. A `net_af_packet` without ring arguments gets [`RING_OF_AF_PACKET`].
    pub(super) fn with_defaults(&self) -> String {
        let mut full = self.full();
        let says_nothing = || {
            let of_ring = ["framecnt", "framesz", "blocksz"];
            of_ring.iter().all(|key| self.value(key).is_none())
        };
        if self.name.starts_with("net_af_packet") && says_nothing() {
            full.push(',');
            full.push_str(RING_OF_AF_PACKET);
        }
        full
    }

    /// The first value of an argument.
    pub(super) fn value(&self, key: &str) -> Option<&str> {
        let mut pairs = self
            .arguments
            .split(',')
            .filter_map(|pair| pair.split_once('='));
        pairs.find(|(one, _)| *one == key).map(|(_, value)| value)
    }

    /// Whether this is a vdev: DPDK creates the device, without a NIC.
    pub(super) fn is_vdev(&self) -> bool {
        ["net_", "eth_", "virtio_user"]
            .iter()
            .any(|start| self.name.starts_with(start))
    }

    /// Whether this is a PCI address.
    pub(super) fn is_pci(&self) -> bool {
        pci_address(&self.name).is_some()
    }
}

impl FromStr for DpdkDevice {
    type Err = SourceError;

    /// # Errors
    /// [`SourceError::Usage`].
    fn from_str(text: &str) -> Result<Self, SourceError> {
        let (name, arguments) = text.split_once(',').unwrap_or((text, ""));
        let name = pci_address(name).unwrap_or_else(|| name.to_owned());
        let device = Self {
            name,
            arguments: arguments.to_owned(),
        };
        // Users know kernel interfaces, so the message first explains that DPDK has its own device
        // names.
        let is_known = device.is_vdev() || device.is_pci() || device.name.contains(':');
        if !is_known || text.contains(|c: char| c == '\0' || c.is_whitespace()) {
            return Err(SourceError::Usage(format!(
                "-i {text}: the dpdk engine takes DPDK's devices: a PCI address like 0000:03:00.0 (dpdk-devbind.py -s lists \
                     them), or a virtual one like net_af_packet0,iface={}",
                if text.is_empty() { "eth0" } else { text }
            )));
        }
        Ok(device)
    }
}

/// Parses `[domain:]bus:device.function`, with or without `pci:` in front. Adds a missing domain.
fn pci_address(text: &str) -> Option<String> {
    let text = text.strip_prefix("pci:").unwrap_or(text);
    let is_hex = |part: &str, length: std::ops::RangeInclusive<usize>| {
        length.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let (rest, function) = text.rsplit_once('.')?;
    let mut parts = rest.split(':').collect::<Vec<_>>();
    if parts.len() == 2 {
        parts.insert(0, "0000");
    }
    let [domain, bus, device] = parts[..] else {
        return None;
    };
    let is_address = is_hex(domain, 4..=8)
        && is_hex(bus, 2..=2)
        && is_hex(device, 2..=2)
        && is_hex(function, 1..=1);
    is_address.then(|| format!("{domain}:{bus}:{device}.{function}").to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_devices_and_addresses_are_taken() {
        let device: DpdkDevice = "net_pcap0,rx_pcap=a.pcap,rx_pcap=b.pcap,infinite_rx=1"
            .parse()
            .unwrap();
        assert_eq!(&device.name, "net_pcap0");
        assert_eq!(device.value("infinite_rx"), Some("1"));
        assert_eq!(device.value("rx_pcap"), Some("a.pcap"));
        assert_eq!(device.value("pcap"), None);
        assert!(device.is_vdev() && !device.is_pci());
        for address in ["03:00.1", "0000:03:00.1", "pci:0000:03:00.1"] {
            let device: DpdkDevice = address.parse().unwrap();
            assert_eq!(device.full(), "0000:03:00.1");
            assert!(device.is_pci() && !device.is_vdev());
        }
        let device: DpdkDevice = "0000:3B:00.0,mprq_en=1".parse().unwrap();
        assert_eq!(device.full(), "0000:3b:00.0,mprq_en=1");
    }

    #[test]
    fn a_packet_socket_gets_a_ring_unless_it_has_one() {
        for (text, ring) in [
            ("net_af_packet0,iface=v1", ",framecnt=16384,blocksz=1048576"),
            (
                "net_af_packet0,iface=v1,qpairs=2",
                ",framecnt=16384,blocksz=1048576",
            ),
            ("net_af_packet0,iface=v1,framecnt=512", ""),
            ("net_af_packet0,framesz=16384,iface=v1", ""),
            ("net_tap0,iface=v1", ""),
        ] {
            let device: DpdkDevice = text.parse().unwrap();
            assert_eq!(device.full(), text, "as the user says it");
            let given = device.with_defaults();
            assert_eq!(given, format!("{text}{ring}"));
        }
    }

    #[test]
    fn other_names_are_explained() {
        for wrong in [
            "eth0",
            "",
            "net_null0,size=6 4",
            "net_null\0",
            "03:00",
            "3:0.0.0",
        ] {
            let parsed = wrong.parse::<DpdkDevice>();
            if wrong.contains(':') {
                // A name with a colon may belong to another bus, so the engine accepts the name,
                // and DPDK decides.
                assert_eq!(parsed.is_err(), wrong.contains(' '), "{wrong}");
                continue;
            }
            let message = parsed.unwrap_err().to_string();
            assert!(
                message.contains("0000:03:00.0") && message.contains("net_af_packet0"),
                "{message}"
            );
        }
    }
}
