//! The pages that back a mapping, as the kernel reports them in proc_pid_smaps(5).

use std::{fs, ops::Range};

/// Fields that count transparent huge pages: of anonymous memory, of tmpfs and memfd, of other
/// files.
const HUGE_FIELDS: [&str; 3] = ["AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"];

/// Bytes of transparent huge pages in the mappings of this process that overlap a range of
/// addresses.
pub(super) fn transparent_bytes(addresses: Range<u64>) -> Option<u64> {
    let smaps = fs::read_to_string("/proc/self/smaps").ok()?;
    Some(transparent_in(&smaps, &addresses))
}

fn transparent_in(smaps: &str, addresses: &Range<u64>) -> u64 {
    let mut inside = false;
    let mut sum = 0;
    for line in smaps.lines() {
        if let Some(mapping) = mapping_range(line) {
            inside = mapping.start < addresses.end && mapping.end > addresses.start;
        } else if inside
            && let Some(kib) = HUGE_FIELDS.iter().find_map(|name| line.strip_prefix(name))
        {
            let kib = kib.trim().trim_end_matches("kB").trim_end();
            sum += kib.parse::<u64>().unwrap_or(0) * 1024;
        }
    }
    sum
}

/// The addresses in the first line of a mapping: `7f00-7f10 rw-p …`.
pub(super) fn mapping_range(line: &str) -> Option<Range<u64>> {
    let (range, _) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    Some(address(from)?..address(to)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaps_are_summed_over_the_mapping_only() {
        let smaps = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \n\
Size:               4096 kB\nAnonHugePages:      2048 kB\nVmFlags: rd wr\n\
7f0000400000-7f0000800000 rw-s 00000000 00:01 9 /memfd:ring\nAnonHugePages: 0 kB\nShmemPmdMapped:   4096 kB\n\
7f0000800000-7f0000a00000 rw-p 00000000 00:00 0 [heap]\nAnonHugePages:      2048 kB\n";
        let sum = |addresses| transparent_in(smaps, &addresses);
        assert_eq!(sum(0x7f00_0040_0000..0x7f00_00a0_0000), 6 << 20);
        assert_eq!(sum(0x7f00_0000_0000..0x7f00_0000_0001), 2 << 20);
        assert_eq!(transparent_in("", &(0..1)), 0);
    }
}
