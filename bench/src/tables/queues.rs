//! Tables of queues by use, size and threads, and of the memory's own limits.

use super::blocks::{NOT_RUN, cell, distinct, table, words};
use super::names::{Topology, Use, count, find, most_threads, parts, queues, rank, written};
use crate::plot::number;
use crate::rows::Row;

/// Line rate of Ethernet with 64-byte frames (60 bytes and the check sequence, 20 bytes of preamble and gap) in packets a
/// second for each bit a second: 14.88 Mpps at 10 Gbit/s.
const MPPS_PER_10_GBIT: f64 = 10e9 / (84.0 * 8.0) / 1e6;

pub(super) fn limits(rows: &[Row]) -> Option<String> {
    let threads_of = |row| {
        let [_, threads]: [&str; 2] = parts(row, "limits/")?;
        count(threads, "t")
    };
    let threads = distinct(rows.iter().filter_map(threads_of));
    let kinds = [
        ("nt-fill", "fill, non-temporal stores"),
        ("fill", "fill, regular stores"),
        ("nt-copy", "copy, non-temporal stores"),
        ("copy", "copy, regular stores"),
        ("read", "read"),
    ];
    let mut lines = Vec::new();
    for (what, label) in kinds {
        let at = |t: &u32| find(rows, &format!("limits/{what}/{t}t"));
        if threads.iter().any(|t| at(t).is_some()) {
            let cells = threads.iter().map(|t| cell(at(t)));
            lines.push([label.to_owned()].into_iter().chain(cells).collect());
        }
    }
    let heading = threads.iter().map(|t| match t {
        1 => "1 thread".to_owned(),
        _ => format!("{t} threads"),
    });
    let heading: Vec<_> = ["GB/s".to_owned()].into_iter().chain(heading).collect();
    table(&heading, &lines)
}

/// Inserts without any queue, by packet size.
pub(super) fn inserts(rows: &[Row]) -> Option<String> {
    let size_of = |row| {
        let [what, size]: [&str; 2] = parts(row, "limits/")?;
        ["raw-insert", "memcpy-insert"]
            .contains(&what)
            .then(|| count(size, "B"))?
    };
    let sizes = distinct(rows.iter().filter_map(size_of));
    if sizes.is_empty() {
        return None;
    }
    let line = |what: &str, label: &str| {
        let cells = sizes
            .iter()
            .map(|size| cell(find(rows, &format!("limits/{what}/{size}B"))));
        [label.to_owned()]
            .into_iter()
            .chain(cells)
            .collect::<Vec<_>>()
    };
    table(
        &size_heading(&sizes),
        &[
            line("raw-insert", "raw NT insert"),
            line("memcpy-insert", "plain memcpy insert"),
        ],
    )
}

fn size_heading(sizes: &[u32]) -> Vec<String> {
    let sizes = sizes.iter().map(|size| format!("{size} B"));
    ["Mpps".to_owned()].into_iter().chain(sizes).collect()
}

/// Contestants used well, by packet size.
pub(super) fn by_size(rows: &[Row], topology: Topology) -> Option<String> {
    let found: Vec<_> = queues(rows)
        .into_iter()
        .filter(|queue| queue.topology == topology && queue.usage <= Use::NonTemporal)
        .collect();
    let sizes = distinct(found.iter().map(|queue| queue.packet_bytes));
    let contestants = distinct(found.iter().map(|q| (rank(q.contestant), q.usage)));
    let mut lines = Vec::new();
    for ((class, contestant), usage) in contestants {
        let copy = if usage == Use::NonTemporal {
            ", our NT copy"
        } else {
            ""
        };
        let name = format!("{}{copy}", written(contestant));
        let cells = sizes.iter().map(|size| {
            let row = found.iter().find(|q| {
                q.contestant == contestant && q.usage == usage && q.packet_bytes == *size
            });
            cell(row.map(|q| q.row))
        });
        let name = if class == 0 {
            format!("**{name}**")
        } else {
            name
        };
        lines.push([name].into_iter().chain(cells).collect());
    }
    let mut text = format!("{topology}:\n\n");
    text.push_str(&table(&size_heading(&sizes), &lines)?);
    Some(text)
}

/// Each queue used well, packet by packet, and with an allocation for each packet, at 64 bytes, one to one.
pub(super) fn naive(rows: &[Row]) -> Option<String> {
    let found: Vec<_> = queues(rows)
        .into_iter()
        .filter(|queue| queue.topology == Topology::ONE && queue.packet_bytes == 64)
        .collect();
    let contestants = distinct(
        found
            .iter()
            .filter(|queue| queue.usage > Use::NonTemporal)
            .map(|queue| queue.contestant),
    );
    let line = |contestant: &str| {
        let at = |usage| {
            let row = found
                .iter()
                .find(|q| q.contestant == contestant && q.usage == usage);
            cell(row.map(|q| q.row))
        };
        vec![
            written(contestant).to_owned(),
            at(Use::Well),
            at(Use::Naive),
            at(Use::Malloc),
        ]
    };
    let lines: Vec<_> = contestants.into_iter().map(line).collect();
    table(
        &words([
            "Mpps",
            "buffers of 64",
            "packet by packet",
            "malloc for each packet",
        ]),
        &lines,
    )
}

/// The requirements of the thesis that are speeds: R1 (line rates; "combined" is of several producers) and R4 (more threads are not
/// slower).
pub(super) fn requirements(rows: &[Row]) -> Option<String> {
    let ring = |topology: Topology| {
        let wanted = queues(rows).into_iter().find(|q| {
            q.contestant == "ring"
                && q.packet_bytes == 64
                && q.topology == topology
                && q.usage == Use::Well
        });
        wanted.and_then(|queue| queue.row.value)
    };
    let one = ring(Topology::ONE)?;
    let most = most_threads(rows).and_then(|topology| Some((topology, ring(topology)?)));
    let verdict = |good| if good { "met" } else { "**missed**" }.to_owned();
    let rate = |requirement: String, links: f64, speed: Option<f64>| {
        let least = links * MPPS_PER_10_GBIT;
        vec![
            requirement,
            format!("≥ {} Mpps", number(least)),
            speed.map_or_else(
                || NOT_RUN.to_owned(),
                |speed| format!("{} Mpps", number(speed)),
            ),
            speed.map_or_else(String::new, |speed| verdict(speed >= least)),
        ]
    };
    let together = match most {
        Some((topology, _)) => format!("R1: 40 Gbit/s together, {topology}"),
        None => "R1: 40 Gbit/s together".to_owned(),
    };
    let total = most.map(|(_, speed)| speed);
    let mut lines = vec![
        rate("R1: a 10 Gbit/s link, 1P1C".to_owned(), 1.0, Some(one)),
        rate(together, 4.0, total),
    ];
    if let Some((topology, speed)) = most {
        lines.push(vec![
            format!("R4: {topology} is not slower than 1P1C"),
            "≥ 1".to_owned(),
            format!("× {}", number(speed / one)),
            verdict(speed >= one),
        ]);
    }
    table(
        &words(["requirement of the thesis", "asks for", "measured", ""]),
        &lines,
    )
}

#[cfg(test)]
mod tests {
    use super::super::blocks::make_up;
    use super::super::names::made_up;
    use super::*;

    #[test]
    fn contestants_stand_by_size_ours_first() {
        let spread = Row {
            min: Some(170.0),
            max: Some(190.0),
            ..made_up("queue/ring/64B/1p1c/well", 180.0, "Mpps")
        };
        let rows = [
            made_up("queue/rtrb/64B/1p1c/well", 99.5, "Mpps"),
            made_up("queue/rtrb/64B/1p1c/naive", 20.0, "Mpps"),
            made_up("queue/rtrb/512B/1p1c/well", 17.0, "Mpps"),
            spread,
        ];
        assert_eq!(
            make_up("queues-1p1c", &rows),
            "1P1C:\n\n| Mpps | 64 B | 512 B |\n|---|---|---|\n\
             | **Retroscope's ring** | 180 (170–190) | – |\n| rtrb | 99.5 | 17.0 |\n"
        );
        assert!(make_up("naive", &rows).ends_with("| rtrb | 99.5 | 20.0 | – |\n"));
        assert!(make_up("queues-most-threads", &rows).contains("not run"));
    }

    #[test]
    fn requirements_compare_with_line_rate_each_with_its_own_threads() {
        let rows = [
            made_up("queue/ring/64B/1p1c/well", 70.0, "Mpps"),
            made_up("queue/ring/64B/2p2c/well", 50.0, "Mpps"),
        ];
        let text = make_up("requirements", &rows);
        assert!(text.contains("| ≥ 14.9 Mpps | 70.0 Mpps | met |"), "{text}");
        // What one producer does is not what several do together.
        let together = "2P2C | ≥ 59.5 Mpps | 50.0 Mpps | **missed** |";
        assert!(text.contains(together), "{text}");
        assert!(text.contains("| × 0.714 | **missed** |"), "{text}");
        let one = make_up("requirements", &rows[..1]);
        assert!(one.contains("| ≥ 59.5 Mpps | not run |  |"), "{one}");
    }
}
