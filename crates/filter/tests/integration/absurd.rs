//! Texts that no user means. No text may cause a crash, and a rejection must take less than a
//! second of processor time.

use std::time::Duration;

use crate::common::savefile;
use retroscope_filter::{EXPRESSION_BYTES_MAX, Filter, FilterError, FilterProblem, Template};
use retroscope_packet::LinkType;
use rustix::time::{ClockId, clock_gettime};

/// Limit on the processor time of a rejection. A slower attempt is repeated up to twice, because on
/// a virtual processor the time of other guests may count too.
const TIME_MAX: Duration = Duration::from_secs(1);
const MIB: usize = 1 << 20;

/// Repeats `unit` between `start` and `end`, as often as `bytes` bytes permit.
fn filled(bytes: usize, (start, unit, end): (&str, &str, &str)) -> String {
    let count = (bytes - start.len() - end.len()) / unit.len();
    [start, &unit.repeat(count), end].concat()
}

/// Parses, checks and compiles an expression for an Ethernet savefile.
fn try_all(text: &str) -> Result<(), FilterError> {
    let link = savefile(LinkType::ETHERNET, 65_535);
    let template = Template::parse(text)?;
    template.check(link)?;
    let mut filter = Filter::new(template.into_plain()?);
    filter.prepare(link)
}

/// Processor time of the calling thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.try_into().expect("it is not negative")
}

/// Tries a text. Returns the error, which must render and must come within the time limit. `None`
/// if the text is accepted, however long that takes.
fn tried(what: &str, text: &str) -> Option<FilterError> {
    for _ in 0..3 {
        let start = cpu_time();
        let error = try_all(text).err()?;
        let shown = error.render();
        if cpu_time() - start >= TIME_MAX {
            continue;
        }
        assert!(shown.starts_with("filter: "), "{what}: {shown}");
        assert!(shown.len() < 1000, "{what}: {} bytes", shown.len());
        assert!(error.span().end <= error.text().len(), "{what}");
        return Some(error);
    }
    panic!("{what}: it takes more than {TIME_MAX:?} to refuse it");
}

#[test]
fn long_texts_are_refused_or_compiled_quickly() {
    for text in [
        ("", "(", ""),
        ("", ")", ""),
        ("", "not ", ""),
        ("", "not ", "tcp"),
        ("", "! (", "tcp"),
        ("", "! ", "$iface"),
        ("", "host 1.2.3.4 or ", ""),
        ("", "host 1.2.3.4 or ", "tcp"),
        ("vlan or ", "host 1.2.3.4 or ", "tcp"),
        ("", "port 80 and ", "tcp"),
        ("", "a", ""),
        ("", "0", ""),
        ("", "[", ""),
        ("ip[", "1+", "1] = 1"),
        ("", "\0", ""),
        ("tcp ", "\0", ""),
        ("", "\\", ""),
        ("", "§", ""),
        ("", "$flow ", ""),
        ("", "$", ""),
        ("", "$iface or ", "tcp"),
        ("", "$iface and tcp or ", "tcp"),
        ("", "($iface or ", ""),
        ("", "(", "$iface"),
        ("", "\"", ""),
        ("", "/", ""),
        ("", "payload ", ""),
        ("", "payload contains ", ""),
        ("payload contains \"", "a", ""),
        ("payload contains \"", "\\", ""),
        ("payload contains \"", "a", "\""),
        ("payload contains \"", "\\x00", "\""),
        ("payload matches /", "(", "/"),
        ("payload matches /", "a", ""),
        ("payload matches /", "\\", ""),
        ("", "payload matches /a/ or ", "tcp"),
        ("", "payload contains \"a\" or ", "tcp"),
        ("", "payload contains \"a\" or tcp and ", "tcp"),
        ("", "payload startswith \"a\" and ", "tcp"),
        ("", "(payload startswith \"a\" or udp) and ", "tcp"),
        ("", "(tcp or (", "payload contains \"a\""),
        ("", "\n", ""),
        ("", "tcp\n", ""),
    ] {
        for bytes in [MIB, 1_000_000, EXPRESSION_BYTES_MAX + text.1.len()] {
            let error = tried(&format!("{bytes} bytes of {text:?}"), &filled(bytes, text));
            let is_too_long = error
                .as_ref()
                .is_some_and(|error| matches!(error.problem(), FilterProblem::TooLong { .. }));
            assert!(is_too_long, "{bytes} bytes of {text:?}: {error:?}");
        }
        // Compiling a valid text may take longer, so the maximum length is tried only if 16 KiB are
        // rejected.
        if tried(&format!("16 KiB of {text:?}"), &filled(16 << 10, text)).is_some() {
            let what = format!("as much as may be of {text:?}");
            tried(&what, &filled(EXPRESSION_BYTES_MAX, text));
        }
    }
}

#[test]
fn depth_is_no_matter() {
    for depth in [1, 50, 99, 100, 101, 1000, 5000, 100_000] {
        for (open, inner) in [
            ("(", "tcp"),
            ("not (", "tcp"),
            ("udp or (", "tcp"),
            ("(", r#"payload contains "a""#),
            ("! (", r#"payload matches /a/"#),
            (
                r#"payload contains "a" and ("#,
                r#"udp or payload contains "b""#,
            ),
            (r#"udp or payload contains "a" and ("#, "udp"),
            ("udp or tcp and (", r#"payload startswith "a""#),
        ] {
            let text = [&open.repeat(depth), inner, &")".repeat(depth)].concat();
            let error = tried(&format!("{depth} times {open} {inner}"), &text);
            if depth <= 20 {
                assert_eq!(error, None, "{text}");
            }
            if depth >= 100_000 {
                assert!(error.is_some(), "{depth} times {open} {inner}");
            }
        }
        // Operands group from the left, so each change of the joiner adds a level.
        let text = r#"payload contains "a" or ip6 and "#.repeat(depth) + "udp";
        let error = tried(&format!("{depth} changes"), &text);
        assert_eq!(error.is_some(), depth > 50, "{depth} changes: {error:?}");
    }
}
