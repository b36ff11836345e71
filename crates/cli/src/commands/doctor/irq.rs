//! The CPUs that a NIC interrupts: `msi_irqs` of the device (the kernel's
//! Documentation/ABI/testing/sysfs-bus-pci) and `effective_affinity_list` of each interrupt
//! (Documentation/core-api/irq/irq-affinity.rst).
//!
//! The kernel usually receives on these CPUs. docs/tuning.md compares capture threads on the same
//! CPUs with capture threads on other CPUs of the node.

use std::{collections::BTreeSet, fs, path::Path};

use retroscope_capture::CpuList;

use super::{finding::Finding, read};
use crate::units::counted;

pub(super) const CHECK: &str = "irq";

/// The finding about an interface whose NIC has its own interrupts. `sys` and `proc` are the mount
/// points of sysfs and procfs.
pub(super) fn finding(sys: &Path, proc: &Path, interface: &str) -> Option<Finding> {
    // A virtio NIC is a child of the device that has the interrupts.
    let device = sys.join("class/net").join(interface).join("device");
    let folder = ["msi_irqs", "../msi_irqs"]
        .iter()
        .find_map(|folder| fs::read_dir(device.join(folder)).ok())?;
    let numbers = folder.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let affinity = |number| {
        read(
            proc.join("irq")
                .join(number)
                .join("effective_affinity_list"),
        )
    };
    let lists: Vec<CpuList> = numbers
        .filter_map(|number| affinity(number)?.parse().ok())
        .collect();
    if lists.is_empty() {
        return None;
    }
    let cpus: BTreeSet<u32> = lists.iter().flat_map(CpuList::as_slice).copied().collect();
    let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
    let interrupts = counted(lists.len() as u64, "interrupt");
    let what = format!("{interrupts}, taken by CPU {}", cpus.join(", "));
    Some(Finding::ok(CHECK, what).on(interface))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_and_their_cpus_are_found() {
        let root = tempfile::tempdir().unwrap();
        let (sys, proc) = (root.path().join("sys"), root.path().join("proc"));
        for (name, folder) in [("eth0", "device/msi_irqs"), ("eth1", "msi_irqs")] {
            // The second interface is a virtio NIC.
            let interface = sys.join("class/net").join(name);
            fs::create_dir_all(interface.join("device")).unwrap();
            fs::create_dir_all(interface.join(folder)).unwrap();
            for number in ["24", "25", "26"] {
                fs::write(interface.join(folder).join(number), "msix\n").unwrap();
            }
            assert_eq!(finding(&sys, &proc, "none"), None);
        }
        for (number, cpus) in [("24", "1\n"), ("25", "0-1\n"), ("26", "")] {
            let folder = proc.join("irq").join(number);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("effective_affinity_list"), cpus).unwrap();
        }
        for name in ["eth0", "eth1"] {
            let found = finding(&sys, &proc, name).unwrap();
            assert_eq!(found.what, "2 interrupts, taken by CPU 0, 1");
            assert_eq!(found.interface.as_deref(), Some(name));
        }
    }
}
