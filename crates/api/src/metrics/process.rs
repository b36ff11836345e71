//! Metrics of this process from proc(5). Their names are those of Prometheus' client libraries.

use std::fs;

/// Metrics of this process. `None`: the system does not provide the value.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Process {
    /// Start time of the process, seconds since the UNIX epoch.
    pub start_seconds: Option<f64>,
    /// Processor time of all threads, seconds.
    pub cpu_seconds: Option<f64>,
    /// Resident memory, the ring included, bytes.
    pub resident_bytes: Option<u64>,
    /// Size of the address space, bytes.
    pub virtual_bytes: Option<u64>,
    /// Number of threads.
    pub threads: Option<u64>,
}

impl Process {
    /// Reads `/proc`. Any thread may call this function.
    #[must_use]
    pub fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let system = fs::read_to_string("/proc/stat").unwrap_or_default();
        let page_bytes = rustix::param::page_size() as u64;
        Self::of(
            &stat,
            &system,
            rustix::param::clock_ticks_per_second(),
            page_bytes,
        )
    }

    fn of(stat: &str, system: &str, ticks_per_second: u64, page_bytes: u64) -> Self {
        // The program's name is in parentheses and may contain any character. Field 3 follows the
        // name.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let seconds = |ticks: u64| ticks as f64 / ticks_per_second.max(1) as f64;
        let boot = system.lines().find_map(|line| line.strip_prefix("btime "));
        let boot = boot.and_then(|boot| boot.trim().parse::<u64>().ok());
        let start = boot.zip(field(22));
        let times = field(14).zip(field(15));
        Self {
            start_seconds: start.map(|(boot, ticks)| boot as f64 + seconds(ticks)),
            cpu_seconds: times.map(|(user, kernel)| seconds(user.saturating_add(kernel))),
            resident_bytes: field(24).map(|pages| pages.saturating_mul(page_bytes)),
            virtual_bytes: field(23),
            threads: field(20),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let stat = "4242 (a ) b) S 1 4242 4242 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 7 0 12345 8192000 500 18446744073709551615 1 1";
        let found = Process::of(stat, "cpu 1 2\nbtime 1700000000\n", 100, 4096);
        let expected = Process {
            start_seconds: Some(1_700_000_123.45),
            cpu_seconds: Some(3.0),
            resident_bytes: Some(2_048_000),
            virtual_bytes: Some(8_192_000),
            threads: Some(7),
        };
        assert_eq!(found, expected);
        for stat in [
            "",
            "4242 (x",
            "4242 (x) S 1",
            "1 (x) S a b c d e f g h i j k l",
        ] {
            assert_eq!(
                Process::of(stat, "btime x", 0, 4096),
                Process::default(),
                "{stat}"
            );
        }
    }

    #[test]
    fn this_process_is_known() {
        let process = Process::read();
        assert!(
            process.start_seconds.unwrap() > 1_600_000_000.0,
            "{process:?}"
        );
        assert!(process.resident_bytes.unwrap() > 0 && process.threads.unwrap() > 0);
    }
}
