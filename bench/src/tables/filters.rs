//! Tables of filters: by engine, what compiling takes, rule sets by number of rules.

use std::collections::BTreeSet;

use super::blocks::{cell, table, words};
use super::inside::grid;
use super::names::{find, parts};
use crate::rows::Row;

/// What a single filter is called in rows, and its expression.
const NAMES: [(&str, &str); 6] = [
    ("udp-port", "`udp port 60000`"),
    ("tcp-host", "`tcp port 80 and host 10.0.0.1`"),
    ("host-or-net", "`host 192.168.1.1 or net 10.0.0.0/8`"),
    ("tcp-flags", "`tcp[tcpflags] & (tcp-syn\\|tcp-fin) != 0`"),
    ("10-hosts", "10 hosts"),
    ("100-hosts", "100 hosts"),
];

/// Nanoseconds a packet in the cache.
pub(super) fn engines(rows: &[Row]) -> Option<String> {
    let engines = ["native", "interpreter", "libpcap", "handwritten"];
    by_name(
        rows,
        "filter-ns/",
        &engines,
        [
            "ns a packet",
            "machine code",
            "our interpreter",
            "`bpf_filter`",
            "by hand",
        ],
    )
}

/// Microseconds to compile.
pub(super) fn compile(rows: &[Row]) -> Option<String> {
    let steps = ["libpcap", "native"];
    by_name(
        rows,
        "filter-compile/",
        &steps,
        ["µs", "`pcap_compile`", "from there to machine code"],
    )
}

/// Nanoseconds a packet in the cache, of filters that nothing is looked up for, by their number.
pub(super) fn together(rows: &[Row]) -> Option<String> {
    let prefix = "filter-together/";
    let number = |row: &Row| parts::<2>(row, prefix)?[0].parse::<u32>().ok();
    let numbers: BTreeSet<u32> = rows.iter().filter_map(number).collect();
    let lines: Vec<Vec<String>> = numbers
        .iter()
        .map(|number| {
            let ways = ["separate", "joint"];
            let at = |way: &str| cell(find(rows, &format!("{prefix}{number}/{way}")));
            std::iter::once(number.to_string())
                .chain(ways.map(at))
                .collect()
        })
        .collect();
    let heading = ["ns by filters", "one by one", "as one function"];
    table(&words(heading), &lines)
}

/// Nanoseconds a packet in the ring, by number of rules.
pub(super) fn rules(rows: &[Row]) -> Option<String> {
    grid(rows, "filter-rules/", "rules", |count| count.parse().ok())
}

fn by_name<const N: usize>(
    rows: &[Row],
    prefix: &str,
    columns: &[&str],
    heading: [&str; N],
) -> Option<String> {
    let is_there = |name: &str| {
        let is_its = |row: &Row| parts::<2>(row, prefix).is_some_and(|[of, _]| of == name);
        rows.iter().any(is_its)
    };
    let names = NAMES.iter().filter(|(name, _)| is_there(name));
    let lines: Vec<Vec<String>> = names
        .map(|(name, text)| {
            let at = |column: &&str| cell(find(rows, &format!("{prefix}{name}/{column}")));
            let cells = columns.iter().map(at);
            std::iter::once((*text).to_owned()).chain(cells).collect()
        })
        .collect();
    table(&words(heading), &lines)
}

#[cfg(test)]
mod tests {
    use super::super::blocks::make_up;
    use super::super::names::made_up;

    #[test]
    fn filters_stand_in_their_order_and_engines_in_columns() {
        let rows = [
            made_up("filter-ns/100-hosts/libpcap", 500.0, "ns"),
            made_up("filter-ns/udp-port/native", 3.0, "ns"),
            made_up("filter-ns/udp-port/handwritten", 2.0, "ns"),
        ];
        let text = make_up("filter-engines", &rows);
        let lines: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| `udp port 60000` | 3.00 | – | – | 2.00 |",
                "| 100 hosts | – | – | 500 | – |"
            ]
        );
    }

    #[test]
    fn filters_together_are_by_number() {
        let rows = [
            made_up("filter-together/16/joint", 5.0, "ns"),
            made_up("filter-together/16/separate", 20.0, "ns"),
            made_up("filter-together/2/joint", 2.0, "ns"),
        ];
        let text = make_up("filter-together", &rows);
        let lines: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(lines, ["| 2 | – | 2.00 |", "| 16 | 20.0 | 5.00 |"]);
    }

    #[test]
    fn rule_sets_are_by_number() {
        let rows = [
            made_up("filter-rules/flows/10000", 30.0, "ns"),
            made_up("filter-rules/flows/1", 20.0, "ns"),
        ];
        let text = make_up("filter-rules", &rows);
        assert!(text.starts_with("| ns by rules | 1 | 10000 |"), "{text}");
        assert!(text.contains("| flow rules | 20.0 | 30.0 |"), "{text}");
    }
}
