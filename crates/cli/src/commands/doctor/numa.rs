//! The NUMA node of each interface. On a machine with several nodes, the recorder asks the kernel
//! for ring memory on the node that all recorded interfaces share.

use super::finding::Finding;
use crate::numa::Topology;

pub(super) const CHECK: &str = "numa";

/// One finding about the machine and, if it has several nodes, one for each interface whose node is
/// known.
pub(super) fn findings(topology: &Topology) -> Vec<Finding> {
    if topology.nodes == 1 {
        return vec![Finding::ok(CHECK, "one NUMA node: all memory is near")];
    }
    let machine = format!(
        "{} NUMA nodes: the ring is on the node of the interfaces if that is the same for all",
        topology.nodes
    );
    let mut findings = vec![Finding::ok(CHECK, machine)];
    let interfaces = topology.known().map(|(name, node)| {
        let cpus =
            format!("run it there: taskset -c $(cat /sys/devices/system/node/node{node}/cpulist)");
        Finding::note(CHECK, format!("is on NUMA node {node}"), cpus).on(name)
    });
    findings.extend(interfaces);
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_told_where_there_is_a_choice() {
        let mut topology = Topology {
            nodes: 1,
            interfaces: vec![("eth0".to_owned(), Some(1)), ("lo".to_owned(), None)],
        };
        assert_eq!(findings(&topology).len(), 1);
        topology.nodes = 2;
        let [machine, interface] = <[_; 2]>::try_from(findings(&topology)).unwrap();
        assert!(machine.what.starts_with("2 NUMA nodes"), "{}", machine.what);
        assert_eq!(interface.interface.as_deref(), Some("eth0"));
        assert_eq!(interface.what, "is on NUMA node 1");
        assert!(
            interface.advice.contains("node1/cpulist"),
            "{}",
            interface.advice
        );
    }
}
