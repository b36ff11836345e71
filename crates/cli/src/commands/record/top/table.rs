//! Formats the flows of a window as lines of text, without side effects.

use retroscope_eve::proto_name;
use retroscope_flow::{BiflowKey, TopOrder, TopReport, TopSubject};
use retroscope_packet::proto::{SCTP, TCP, UDP};

/// Index of the line with the column headings.
pub(super) const HEADING: usize = 1;

/// Facts for the table that are not in the report.
#[derive(Debug)]
pub(super) struct About {
    /// Names of the sources.
    pub(super) title: String,
    /// Sort order of the rows.
    pub(super) by: TopOrder,
    /// Packets known to be lost since the start.
    pub(super) lost: u64,
}

/// Formats at most `height` lines, none wider than `width`.
pub(super) fn table(
    report: &TopReport,
    about: &About,
    (width, height): (usize, usize),
) -> Vec<String> {
    let seconds = report.span_ns.max(1) as f64 / 1e9;
    let megabits = |bytes: u64| bytes as f64 * 8e-6 / seconds;
    let total = report.total;
    let mut lines = vec![format!(
        "last {seconds:.0} s: {:.3} Mbit/s, {:.0} pps, {}{} flows; lost {}; {}",
        megabits(total.bytes_both()),
        total.packets as f64 / seconds,
        report.flows,
        if report.untracked.packets > 0 {
            "+"
        } else {
            ""
        },
        about.lost,
        about.title,
    )];
    let by = about.by;
    let what = if by == TopOrder::Flows {
        "host"
    } else {
        "from > to"
    };
    let heading = ["flows", "Mbit/s", "pps", "share", "proto", what];
    lines.push(line(by, width, heading.map(str::to_owned)));
    let mut row = |flows: u64, packets: u64, bytes: u64, proto: String, name: String| {
        let (part, whole) = match by {
            TopOrder::Bits => (bytes, total.bytes_both()),
            TopOrder::Packets => (packets, total.packets),
            TopOrder::Flows => (flows, report.flows),
        };
        let cells = [
            flows.to_string(),
            format!("{:.3}", megabits(bytes)),
            format!("{:.1}", packets as f64 / seconds),
            format!("{:.1}%", part as f64 * 100.0 / whole.max(1) as f64),
            proto,
            name,
        ];
        lines.push(line(by, width, cells));
    };
    let (mut packets, mut bytes) = (total.packets, total.bytes_both());
    for one in report.rows.iter().take(height.saturating_sub(3)) {
        let (proto, name) = match one.subject {
            TopSubject::Flow(key) => (proto(&key), ends(&key, one.volume.bytes)),
            TopSubject::Host(host) => (String::new(), host.to_string()),
        };
        let volume = one.volume;
        row(one.flows, volume.packets, volume.bytes_both(), proto, name);
        if by != TopOrder::Flows {
            packets -= volume.packets;
            bytes -= volume.bytes_both();
        }
    }
    if by != TopOrder::Flows && packets > 0 {
        row(0, packets, bytes, String::new(), "all others".to_owned());
    }
    lines.truncate(height);
    lines.iter().map(|line| cut(line, width)).collect()
}

/// Joins the cells of a row. `by` selects and orders the columns. With a `width` below 80, only the
/// first columns are shown. The name is always the last cell.
fn line(
    by: TopOrder,
    width: usize,
    [flows, bits, packets, share, proto, name]: [String; 6],
) -> String {
    let number = |text| format!("{text:>10} ");
    let (bits, packets, share) = (number(bits), number(packets), format!("{share:>6} "));
    let columns = match by {
        TopOrder::Bits => [bits, packets, share, format!("{proto:<9} ")],
        TopOrder::Packets => [packets, bits, share, format!("{proto:<9} ")],
        TopOrder::Flows => [number(flows), bits, packets, share],
    };
    let count = match width {
        ..60 => 1,
        60..80 => 2,
        _ => 4,
    };
    columns[..count].concat() + &name
}

fn proto(key: &BiflowKey) -> String {
    if key.endpoints().is_none() {
        return "no IP".to_owned();
    }
    let name = proto_name(key.proto()).map(str::to_owned);
    name.unwrap_or_else(|| key.proto().to_string())
}

/// Both endpoints of a flow. The endpoint that sent more comes first.
fn ends(key: &BiflowKey, bytes: [u64; 2]) -> String {
    let has_ports = matches!(key.proto(), TCP | UDP | SCTP);
    let [mut from, mut to] = match key.endpoints().filter(|_| has_ports) {
        Some(ends) => ends.map(|end| std::net::SocketAddr::new(end.addr, end.port).to_string()),
        None => key.hosts().map(|host| host.to_string()),
    };
    if bytes[1] > bytes[0] {
        std::mem::swap(&mut from, &mut to);
    }
    let vlans = key.vlans().map(|vlan| format!(" vlan {vlan}"));
    format!("{from} > {to}{}", vlans.collect::<String>())
}

/// Truncates a line to the width. Replaces all characters except printable ASCII by `?`, because an
/// interface name must not control the terminal.
fn cut(line: &str, width: usize) -> String {
    let printable = |char: char| if matches!(char, ' '..='~') { char } else { '?' };
    line.chars().map(printable).take(width).collect()
}

#[cfg(test)]
mod tests;
