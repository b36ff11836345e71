//! Runs the rows of `make bench-quick` and many rows of `make bench`, with little memory and short
//! times.

use crate::{
    measure::Scale,
    pin,
    rows::{self, Command},
    session::{Row, Selection, Session, read},
};

fn rows_of(command: Command, selection: &str) -> Vec<Row> {
    let folder = tempfile::tempdir().unwrap();
    let scale = Scale {
        ring_bytes: 32 << 20,
        seconds: 0.001,
        repetitions: 1,
    };
    let session = Session::start(folder.path(), scale, Selection::parse(selection)).unwrap();
    session.run(&[command]).unwrap();
    let rows = read(folder.path()).unwrap();
    assert!(!session.failed.get(), "{rows:?}");
    let mut names: Vec<_> = rows.iter().map(|row| &row.name).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all, "each once");
    rows
}

#[test]
fn every_judged_row_is_written() {
    let rows = rows_of(Command::Quick, "");
    let mut listed: Vec<_> = rows::of(Command::Quick).map(|row| row.name).collect();
    let mut names: Vec<_> = rows.iter().map(|row| row.name.as_str()).collect();
    listed.sort_unstable();
    names.sort_unstable();
    assert_eq!(names, listed);
    assert!(
        rows.iter()
            .all(|row| row.value.is_some() || row.versus.is_some())
    );
}

#[test]
fn a_selection_brings_its_denominators_and_nothing_else() {
    let rows = rows_of(Command::Quick, "ring/64B/1p1c/vs-raw-insert");
    let names: Vec<_> = rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "limits/raw-insert/vs-nt-fill",
            "ring/64B/1p1c/vs-raw-insert"
        ]
    );
}

/// The names must not change, because documents refer to these names.
#[test]
fn the_rows_of_the_thesis_are_there() {
    let selection = "limits,latency/10kpps,latency/qq2016/10kpps,latency/rtrb,cycles,processing,recorder/latency,queue/ring,queue/qq2016,queue/rtrb/64B/1p1c,filter-together,\
        producers,sink,inner-queue,outer-queue,guard,qq2016,rx-queues,\
        scale/copy,scale/ring";
    let rows = rows_of(Command::Full, selection);
    for name in [
        "producers/ring/64B/2p1c",
        "producers/qq2016/1514B/2p1c",
        "sink/ring/64B",
        "inner-queue/qq2016/2MiB",
        "outer-queue/qq2016/2t",
        "guard/qq2016/1",
        "qq2016/hold-check/vs-none",
        "queue/rtrb/64B/1p1c/malloc",
        "queue/rtrb/64B/1p1c/one-by-one",
        "queue/rtrb/64B/1p1c/reused",
        "rx-queues/slowed/2q",
        "scale/copy",
        "scale/ring",
        "limits/memcpy-insert/64B",
        "limits/raw-insert/1514B",
        "latency/10kpps/p99",
        "latency/qq2016/10kpps/p50",
        "latency/rtrb/1mpps/p50",
        "latency/rtrb/64/1mpps/p99",
        "cycles/budget",
        "cycles/generator/publish",
        "cycles/file/all",
        "processing/ttl/1us",
        "recorder/latency/one-thread",
        "recorder/latency/inline/110pc-p99",
        "queue/ring/64B/1p1c/well",
        "queue/qq2016/1514B/1p1c/well",
        "queue/rtrb/64B/1p1c/well",
        "filter-together/16/joint",
    ] {
        let row = rows.iter().find(|row| row.name == name);
        let has_figure = row.is_some_and(|row| row.value.is_some());
        assert!(
            has_figure || row.is_some() && pin::cores() == 1,
            "{name}: {row:?}"
        );
    }
}
