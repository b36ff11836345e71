//! Memory that a ring may use.

use std::path::PathBuf;

use crate::system_file::{read, read_number};

const DEFAULT_BYTES: u64 = 1 << 30;

/// Available bytes: of the machine, or of the control groups if less. `None`: unknown.
pub(crate) fn available() -> Option<u64> {
    let available = read("/proc/meminfo").and_then(|text| field_kib(&text, "MemAvailable:"));
    [available, cgroup_left()].into_iter().flatten().min()
}

/// Default ring size in bytes: 1 GiB, or a quarter of the available memory if less.
pub(crate) fn default_ring(available: Option<u64>) -> u64 {
    available.map_or(DEFAULT_BYTES, |bytes| DEFAULT_BYTES.min(bytes / 4))
}

/// Size of the largest ring in bytes that leaves a tenth of the available memory free. A multiple
/// of 2 MiB.
pub(crate) fn largest_ring(available: u64) -> u64 {
    let bytes = available / 10 * 9;
    bytes - bytes % (2 << 20)
}

fn field_kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Bytes that the control groups of this process still allow: the smallest limit minus usage.
fn cgroup_left() -> Option<u64> {
    let groups = read("/proc/self/cgroup")?;
    let mut least: Option<u64> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let (root, limit, used) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            c if c.split(',').any(|c| c == "memory") => (
                "/sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
            ),
            _ => continue,
        };
        let group = PathBuf::from(format!("{root}{path}"));
        for group in group
            .ancestors()
            .take_while(|group| group.starts_with(root))
        {
            let number = |name| read_number(group.join(name));
            if let (Some(limit), Some(used)) = (number(limit), number(used)) {
                let left = limit.saturating_sub(used);
                least = Some(least.map_or(left, |least| least.min(left)));
            }
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_kib() {
        assert_eq!(
            field_kib("MemTotal: 5 kB\nMemAvailable:   2048 kB\n", "MemAvailable:"),
            Some(2 << 20)
        );
        assert_eq!(field_kib("MemTotal: 5 kB\n", "MemAvailable:"), None);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(available().is_some_and(|bytes| bytes > 1 << 20));
    }
}
