//! NUMA nodes of the interfaces. A ring is usually fastest on the node of the NIC that fills it.
//!
//! See the kernel's Documentation/ABI/stable/sysfs-devices-node and, for `numa_node` of a device,
//! testing/sysfs-bus-pci.

use std::path::Path;

use retroscope_capture::CpuList;

use crate::system_file::read;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Topology {
    /// Number of online nodes. 1 if the number is unknown.
    pub(crate) nodes: usize,
    /// Interfaces with their node. `None`: unknown, for example of a virtual interface.
    pub(crate) interfaces: Vec<(String, Option<u32>)>,
}

impl Topology {
    pub(crate) fn read<'a>(sys: &Path, interfaces: impl Iterator<Item = &'a str>) -> Self {
        // The list of nodes has the format of CPU lists.
        let online = read(sys.join("devices/system/node/online"));
        let nodes: Option<CpuList> = online.and_then(|list| list.parse().ok());
        let node_of = |name: &str| {
            // A name with a slash would lead to another directory.
            let name = Some(name).filter(|name| !name.contains('/'))?;
            let path = sys.join("class/net").join(name).join("device/numa_node");
            read(path)?.parse::<u32>().ok() // -1: unknown
        };
        Self {
            nodes: nodes.map_or(1, |list| list.as_slice().len()),
            interfaces: interfaces
                .map(|name| (name.to_owned(), node_of(name)))
                .collect(),
        }
    }

    /// The node that all interfaces share, if the machine has several nodes.
    pub(crate) fn common_node(&self) -> Option<u32> {
        let (_, first) = self.interfaces.first()?;
        let same = self.interfaces.iter().all(|(_, node)| node == first);
        first.filter(|_| same && self.nodes > 1)
    }

    /// Whether interfaces are known to have different nodes.
    pub(crate) fn are_apart(&self) -> bool {
        let mut nodes = self.known().map(|(_, node)| node);
        let first = nodes.next();
        nodes.any(|node| Some(node) != first)
    }

    pub(crate) fn known(&self) -> impl Iterator<Item = (&str, u32)> {
        self.interfaces
            .iter()
            .filter_map(|(name, node)| Some((name.as_str(), (*node)?)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn topology(online: Option<&str>, interfaces: &[(&str, Option<&str>)]) -> Topology {
        let sys = tempfile::tempdir().unwrap();
        let nodes = sys.path().join("devices/system/node");
        fs::create_dir_all(&nodes).unwrap();
        if let Some(online) = online {
            fs::write(nodes.join("online"), online).unwrap();
        }
        for (name, node) in interfaces {
            let interface = sys.path().join("class/net").join(name);
            fs::create_dir_all(interface.join("device")).unwrap();
            if let Some(node) = node {
                fs::write(interface.join("device/numa_node"), node).unwrap();
            }
        }
        Topology::read(sys.path(), interfaces.iter().map(|(name, _)| *name))
    }

    #[test]
    fn one_node_for_all_interfaces_is_chosen() {
        let (zero, one) = (Some("0\n"), Some("1\n"));
        let common = |online, interfaces: &[_]| topology(online, interfaces).common_node();
        assert_eq!(common(Some("0-1"), &[("eth0", one)]), Some(1));
        assert_eq!(
            common(Some("0-1"), &[("eth0", zero), ("eth1", zero)]),
            Some(0)
        );
        assert_eq!(common(Some("0-1"), &[("eth0", zero), ("eth1", one)]), None);
        assert_eq!(common(Some("0-1"), &[("eth0", one), ("veth0", None)]), None);
        assert_eq!(common(Some("0-1"), &[("eth0", Some("-1\n"))]), None);
        assert_eq!(common(Some("0-1"), &[]), None);
        assert_eq!(common(Some("0"), &[("eth0", zero)]), None, "no choice");
        assert_eq!(common(None, &[("eth0", zero)]), None, "no NUMA");
    }

    #[test]
    fn only_known_nodes_are_apart() {
        let (zero, one) = (Some("0\n"), Some("1\n"));
        let are_apart = |interfaces: &[_]| topology(Some("0-1"), interfaces).are_apart();
        assert!(are_apart(&[("eth0", zero), ("eth1", one)]));
        assert!(!are_apart(&[
            ("eth0", zero),
            ("eth1", zero),
            ("tun0", None)
        ]));
        assert!(!are_apart(&[]));
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let machine = topology(
            Some("0-1"),
            &[("eth0", Some("1\n")), ("lo", None), ("eth1", Some("junk"))],
        );
        assert_eq!(machine.known().collect::<Vec<_>>(), [("eth0", 1)]);
        assert!(!machine.are_apart());
        let elsewhere = Topology::read(Path::new("/sys"), ["../../x"].into_iter());
        assert_eq!(elsewhere.interfaces, [("../../x".to_owned(), None)]);
    }
}
