//! What the names of rows say. Tables and figures find their rows by these names alone.
//!
//! | name | what |
//! |---|---|
//! | `queue/CONTESTANT/SIZEB/NpMc/USE` | packets a second; uses are `well`, `naive`, `malloc` and `nt` |
//! | `limits/WHAT/Nt` | bytes a second of the memory itself, by threads |
//! | `limits/WHAT/SIZEB` | packets a second stored without any queue |
//! | `bucket/NMiB/SIZEB`, `bucket-qq2016/…` | packets a second by size of the inner queue |
//! | `outer/CONTESTANT/Nt` | operations a second on the outer queue, by threads |
//! | `guard/CONTESTANT/N` | packets a second, the reader N inner queues behind |
//! | `latency/RATE/p50`, `p99`, `max`, `latency-qq2016/…` | from store to peek |
//! | `ablation/N-CHANGE` | packets a second after the first N changes |
//! | `filter-ns/FILTER/ENGINE` | nanoseconds a packet in the cache |
//! | `filter-compile/FILTER/libpcap`, `native` | microseconds |
//! | `filter-together/N/separate`, `…/joint` | nanoseconds a packet in the cache with N filters that nothing is looked up for, one by one and as one function |
//! | `filter-rules/SORT/N`, `filter-rules/one/N` | nanoseconds a packet in the ring with N rules, and with one filter |
//! | `capture/SIZEB/PROGRAM-ns` | processor time that a program takes for each packet |
//! | `capture/lossless/SIZEB/PROGRAM` | packets a second at which it loses none |
//!
//! The judged rows (`ring/…`, `recorder/…`, `filter/…`, `capture/SIZEB/cpu-vs-…`) are looked up by their whole names.

use crate::rows::Row;

/// How a queue is used in a row: the last part of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Use {
    /// Buffers of 64 packets through as much memory as our ring; our ring and QQ of 2016 as they are.
    Well,
    /// As `Well`, but packets are copied with our non-temporal stores.
    NonTemporal,
    /// One queue operation for each packet.
    Naive,
    /// One allocation for each packet.
    Malloc,
}

impl Use {
    fn parse(text: &str) -> Option<Use> {
        Some(match text {
            "well" => Use::Well,
            "nt" => Use::NonTemporal,
            "naive" => Use::Naive,
            "malloc" => Use::Malloc,
            _ => return None,
        })
    }
}

/// How many threads put in and take out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Topology {
    pub(crate) producers: u32,
    pub(crate) consumers: u32,
}

impl Topology {
    pub(crate) const ONE: Topology = Topology {
        producers: 1,
        consumers: 1,
    };

    fn parse(text: &str) -> Option<Topology> {
        let (producers, consumers) = text.strip_suffix('c')?.split_once('p')?;
        Some(Topology {
            producers: producers.parse().ok()?,
            consumers: consumers.parse().ok()?,
        })
    }
}

impl std::fmt::Display for Topology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}P{}C", self.producers, self.consumers)
    }
}

/// A row of the comparison of queues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueRow<'a> {
    pub(crate) contestant: &'a str,
    pub(crate) packet_bytes: u32,
    pub(crate) topology: Topology,
    pub(crate) usage: Use,
    pub(crate) row: &'a Row,
}

/// All rows of the comparison of queues, in their order.
pub(crate) fn queues(rows: &[Row]) -> Vec<QueueRow<'_>> {
    let parse = |row| {
        let [contestant, size, topology, usage] = parts(row, "queue/")?;
        Some(QueueRow {
            contestant,
            packet_bytes: count(size, "B")?,
            topology: Topology::parse(topology)?,
            usage: Use::parse(usage)?,
            row,
        })
    };
    rows.iter().filter_map(parse).collect()
}

/// The largest topology beside one to one that has as many consumers as producers: all queues run with those, while only
/// our ring and QQ of 2016 run with a single sink.
pub(crate) fn most_threads(rows: &[Row]) -> Option<Topology> {
    let all = queues(rows).into_iter().map(|queue| queue.topology);
    all.filter(|t| t.producers == t.consumers && *t != Topology::ONE)
        .max()
}

/// The row of this name.
pub(crate) fn find<'a>(rows: &'a [Row], name: &str) -> Option<&'a Row> {
    rows.iter().find(|row| row.name == name)
}

/// What stands behind `prefix` in the row's name, if it is exactly `N` parts.
pub(crate) fn parts<'a, const N: usize>(row: &'a Row, prefix: &str) -> Option<[&'a str; N]> {
    let rest: Vec<&str> = row.name.strip_prefix(prefix)?.split('/').collect();
    rest.try_into().ok()
}

/// The number before `unit`: `count("64B", "B")` is 64.
pub(crate) fn count(text: &str, unit: &str) -> Option<u32> {
    text.strip_suffix(unit)?.parse().ok()
}

/// A contestant's name as its makers write it.
pub(crate) fn written(contestant: &str) -> &str {
    match contestant {
        "ring" => "Retroscope's ring",
        "qq2016" => "QQ of 2016",
        "array-queue" => "crossbeam ArrayQueue",
        "reader-writer-queue" => "ReaderWriterQueue",
        "concurrent-queue" => "ConcurrentQueue",
        "rte-ring-sp" => "rte_ring SP/SC",
        "rte-ring-mp" => "rte_ring MP/MC",
        "one" => "a single filter",
        "flows" => "flow rules",
        "mixed" => "hosts, nets and ports",
        other => other,
    }
}

/// Where a contestant stands in a list: ours, QQ of 2016, then the others by name.
pub(crate) fn rank(contestant: &str) -> (u32, &str) {
    let class = match contestant {
        "ring" => 0,
        "qq2016" => 1,
        _ => 2,
    };
    (class, contestant)
}

/// Where a rate of the latency rows stands: packets a second, nothing for an idle link.
pub(crate) fn rate(text: &str) -> Option<f64> {
    match text {
        "idle" => Some(0.0),
        "saturated" => Some(f64::INFINITY),
        _ => {
            let (number, times) = match text.strip_suffix("kpps") {
                Some(number) => (number, 1e3),
                None => (text.strip_suffix("mpps")?, 1e6),
            };
            Some(number.parse::<f64>().ok()? * times)
        }
    }
}

/// A row with a value that nobody measured, for tests.
#[cfg(test)]
pub(crate) fn made_up(name: &str, value: f64, unit: &str) -> Row {
    Row::absolute(name, unit, crate::measure::Spread::once(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let rows = [
            made_up("queue/rtrb/512B/2p3c/naive", 1.0, "Mpps"),
            made_up("queue/rtrb/512B/2p3c/sideways", 1.0, "Mpps"),
            made_up("queue/rtrb/512/2p3c/well", 1.0, "Mpps"),
            made_up("ring/64B/1p1c/vs-qq2016", 4.0, "ratio"),
        ];
        let found = queues(&rows);
        assert_eq!(found.len(), 1);
        let queue = found[0];
        assert_eq!((queue.contestant, queue.packet_bytes), ("rtrb", 512));
        assert_eq!(
            (queue.topology.to_string(), queue.usage),
            ("2P3C".to_owned(), Use::Naive)
        );
        assert_eq!(most_threads(&rows), None, "no pairs");
        let pairs = made_up("queue/ring/64B/2p2c/well", 1.0, "Mpps");
        let most = most_threads(&[rows[0].clone(), pairs]);
        assert_eq!(
            most.map(|topology| topology.to_string()),
            Some("2P2C".to_owned())
        );
        assert_eq!(
            parts::<2>(&rows[3], "ring/64B/"),
            Some(["1p1c", "vs-qq2016"])
        );
        assert_eq!(parts::<1>(&rows[3], "ring/64B/"), None);
    }

    #[test]
    fn rates_are_in_order() {
        let rates = ["idle", "1kpps", "100kpps", "1mpps", "10mpps", "saturated"].map(rate);
        assert!(rates.iter().all(Option::is_some));
        assert!(rates.is_sorted());
        assert_eq!(rate("fast"), None);
    }
}
