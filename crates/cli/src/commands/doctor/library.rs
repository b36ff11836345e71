//! The libpcap that compiles filters.

use super::{finding::Finding, read};

pub(super) const CHECK: &str = "libpcap";

/// The finding about the mapped libpcap.
pub(super) fn finding() -> Finding {
    judge(mapped(&read("/proc/self/maps").unwrap_or_default()))
}

/// `path`: the libpcap that is mapped into this process. `None`: no mapped libpcap was found, so
/// libpcap is probably linked statically.
fn judge(path: Option<&str>) -> Finding {
    let Some(path) = path else {
        return Finding::ok(
            CHECK,
            "filters are compiled by a libpcap inside this program",
        );
    };
    match version(path) {
        Some((major, minor)) if (major, minor) < (1, 10) => Finding::note(
            CHECK,
            format!("filters are compiled by libpcap {major}.{minor}: {path}"),
            "install libpcap 1.10 or newer: older ones know fewer link types and expressions",
        ),
        _ => Finding::ok(CHECK, format!("filters are compiled by {path}")),
    }
}

/// The path of libpcap among the lines of `/proc/PID/maps`.
fn mapped(maps: &str) -> Option<&str> {
    let mut paths = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]));
    paths.find(|path| {
        path.rsplit('/')
            .next()
            .is_some_and(|name| name.starts_with("libpcap.so"))
    })
}

/// Major and minor version in a file name: 1 and 10 in `libpcap.so.1.10.3`. `None`: the name does
/// not have both numbers.
fn version(path: &str) -> Option<(u32, u32)> {
    let (_, numbers) = path.rsplit_once(".so.")?;
    let mut numbers = numbers.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::{super::finding::Severity, *};

    const MAPS: &str = "7f0000000000-7f0000001000 r--p 00000000 08:01 1 /usr/lib/libc.so.6\n\
                        7f0000002000-7f0000003000 r--p 00000000 00:00 0\n\
                        7f0000004000-7f0000005000 r-xp 00000000 08:01 2 /usr/lib/libpcap.so.1.10.3\n";

    #[test]
    fn the_mapped_library_is_named() {
        assert_eq!(mapped(MAPS), Some("/usr/lib/libpcap.so.1.10.3"));
        assert_eq!(
            mapped("7f0000002000-7f0000003000 r--p 00000000 00:00 0\n"),
            None
        );
    }

    #[test]
    fn old_libraries_are_noted() {
        let severity = |path| judge(path).severity;
        assert_eq!(severity(Some("/usr/lib/libpcap.so.1.10.3")), Severity::Ok);
        assert_eq!(severity(Some("/usr/lib/libpcap.so.2.0.0")), Severity::Ok);
        assert_eq!(severity(Some("/usr/lib/libpcap.so.1.9.1")), Severity::Note);
        assert_eq!(severity(Some("/usr/lib/libpcap.so")), Severity::Ok);
        assert_eq!(severity(None), Severity::Ok);
    }

    #[test]
    fn this_program_has_one() {
        let finding = finding();
        assert!(finding.what.contains("libpcap"), "{}", finding.what);
    }
}
