//! The rows that ring and filters are judged by: `make bench-quick`.
//!
//! | row | what it compares | at least |
//! |---|---|---|
//! | `ring/64B/1p1c/vs-qq2016` | packets a second against the QQ of 2016 | 3.5 |
//! | `ring/64B/1p1c/vs-best-peer` | against the fastest peer, used well over as much memory | 1.5 |
//! | `ring/64B/1p1c/vs-raw-insert` | against non-temporal stores of descriptor and payload without a queue | 0.80 |
//! | `ring/64B/2p2c/vs-qq2016` | two producers, two consumers | 3.5 |
//! | `ring/512B/1p1c/vs-qq2016` | | 2.5 |
//! | `ring/1514B/1p1c/vs-qq2016` | | 2.0 |
//! | `ring/1514B/1p1c/vs-nt-fill` | bytes of descriptors and payload against a non-temporal fill | 0.80 |
//! | `ring/cold-scan/vs-length-walk`, `ring/cold-scan/ns` | time for one packet in memory that no cache holds | 4.0, at most 20 ns |
//! | `ring/latency/idle-p99-us`, `ring/latency/1mpps-p99-us` | from store to peek, 1000 and 1,000,000 packets a second | at most 1000 µs |
//! | `ring/latency/idle-cpu` | processor time of a reader without news | at most 2 % |
//! | `ring/bytes-per-64B` | ring bytes over retained packets, bursts of 1 or 64, the worse | at most 81 |
//! | `ring/bucket-change-us` | a producer's change of buckets: 65,535 small ones, all full, 1,000 reservations | at most 5 µs |
//! | `recorder/64B/vs-ring` | the whole recorder with one trigger filter against the bare ring | 0.4 |
//! | `recorder/inserters/2-vs-1` | inserters without a reader, the generator in this process: packets a second of two against one | 1.8 |
//! | `capture/dpdk/net-null-vs-bare` | 64-byte packets of `net_null` into the ring against a loop that receives and frees (feature `dpdk`) | 0.6 |
//! | `filter/single/vs-libpcap` | five filters on packets in the cache against `bpf_filter`, geometric mean | 3.5 |
//! | `filter/single/vs-handwritten-time` | their time over that of functions written by hand | at most 1.4 |
//! | `filter/100-hosts/vs-libpcap` | 100 or-ed hosts against `bpf_filter` | 25 |
//! | `filter/10k-flows/vs-one-time` | time of 10,000 flow rules over that of one filter, packets in the ring | at most 2 |
//! | `filter/10k-mixed/vs-one-time` | the same of hosts, nets and ports | at most 3 |
//! | `filter/cold/vs-libpcap-walk` | one filter on packets in the ring against `bpf_filter` on packets walked by length | 4.0 |
//! | `filter/install-10k-ms` | from 10,000 texts of flow rules to matches, while packets flow | at most 50 ms |
//! | `filter/lua/vs-libpcap-time` | time of a trigger in Lua over that of `bpf_filter`, packets in the cache | at most 0.6 |
//!
//! A ratio is nothing without a sound denominator, so these are measured in the same turns, and a ratio whose denominator
//! falls short has no figure but a sentence:
//!
//! | row | at least |
//! |---|---|
//! | `limits/raw-insert/vs-nt-fill`, in bytes | 0.7 |
//! | `limits/qq2016/vs-memcpy-insert`, of one thread, same size of packet | 0.4 |
//! | `limits/best-peer/vs-memcpy-insert` | 0.8 |
//!
//! A selection of rows brings the rows of its denominators with it.

mod filter;
mod inserters;
mod inside;
mod throughput;

use crate::{
    rows::Selection,
    session::{Session, SessionError},
};

/// All judged rows and their denominators.
pub const ROWS: [&str; 28] = [
    throughput::RAW_VS_FILL,
    throughput::QQ_VS_MEMCPY,
    throughput::PEER_VS_MEMCPY,
    throughput::VS_QQ_64,
    throughput::VS_PEER,
    throughput::VS_RAW,
    throughput::VS_QQ_64_PAIRS,
    throughput::VS_QQ_512,
    throughput::VS_QQ_1514,
    throughput::VS_FILL,
    inside::COLD_RATIO,
    inside::COLD_NS,
    inside::LATENCY_IDLE,
    inside::LATENCY_1MPPS,
    inside::IDLE_CPU,
    inside::BYTES,
    inside::CHANGE,
    throughput::RECORDER,
    inserters::TWO_VS_ONE,
    inserters::NULL_VS_BARE,
    filter::SINGLE,
    filter::SINGLE_TIME,
    filter::HUNDRED,
    filter::FLOWS,
    filter::MIXED,
    filter::COLD,
    filter::INSTALL,
    filter::LUA_TIME,
];

/// Finds a selection that names none of the judged rows.
///
/// # Errors
/// [`SessionError::Selection`].
pub fn check(selection: &Selection) -> Result<(), SessionError> {
    let unknown = selection.unknown(&ROWS).next().map(str::to_owned);
    unknown.map_or(Ok(()), |item| Err(SessionError::Selection { item }))
}

/// Measures what is wanted of them.
///
/// # Errors
/// [`SessionError::Results`]: the results cannot be written. What cannot be measured is a row.
pub fn run(session: &mut Session) -> Result<(), SessionError> {
    inside::retention(session)?;
    inside::latency(session)?;
    throughput::queues(session)?;
    throughput::recorder(session)?;
    inserters::rows(session)?;
    inside::cold_scan(session)?;
    filter::rows(session)?;
    inside::bucket_change(session)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{pace::Scale, rows};

    fn rows_of(selection: &str) -> Vec<rows::Row> {
        let folder = tempfile::tempdir().unwrap();
        let scale = Scale {
            ring_bytes: 32 << 20,
            seconds: 0.001,
            repetitions: 1,
        };
        let mut session =
            Session::start(folder.path(), scale, Selection::parse(selection)).unwrap();
        run(&mut session).unwrap();
        assert!(
            !session.results().failed(),
            "{:?}",
            session.results().rows()
        );
        rows::read(session.results().path()).unwrap()
    }

    #[test]
    fn every_judged_row_is_written_once() {
        let rows = rows_of("");
        for name in ROWS {
            let found: Vec<_> = rows.iter().filter(|row| row.name == name).collect();
            assert_eq!(found.len(), 1, "{name}");
            assert!(found[0].value.is_some() || found[0].versus.is_some());
        }
        assert_eq!(rows.len(), ROWS.len());
    }

    #[test]
    fn a_selection_brings_its_denominators_and_nothing_else() {
        let mut names: Vec<_> = rows_of("ring/64B/1p1c/vs-raw-insert")
            .into_iter()
            .map(|row| row.name)
            .collect();
        names.sort_unstable();
        assert_eq!(names, [throughput::RAW_VS_FILL, throughput::VS_RAW]);
        assert!(check(&Selection::parse("ring,limits,filter")).is_ok());
        assert!(check(&Selection::parse("ring,limit")).is_err());
    }
}
