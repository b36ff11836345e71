//! The flows of real captures as lines.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests, which may"
)]

mod schema;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use retroscope_eve::{FlowContext, event, flow};
use retroscope_flow::{EndedFlow, Secret, Tracker, TrackerConfig};
use retroscope_packet::{community_id, parse};
use retroscope_pcapfile::CaptureReader;
use serde_json::{Value, json};

use schema::Schema;

/// The folder of shared captures, or `None` with a note on stderr if the checkout has no such
/// folder.
fn shared() -> Option<PathBuf> {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    if shared.is_dir() {
        return Some(shared);
    }
    eprintln!(
        "SKIP: no captures at {}: nothing was tested",
        shared.display()
    );
    None
}

/// Every file below a folder except tables and notes (`tsv`, `md`), in order of path.
fn captures(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let is_table = path
                .extension()
                .is_some_and(|ext| ext == "tsv" || ext == "md");
            if path.is_dir() {
                folders.push(path);
            } else if !is_table {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The flows of a capture up to its end or first damage, and the Community IDs of its packets.
fn read(path: &Path) -> (Vec<EndedFlow>, BTreeSet<String>) {
    let config = TrackerConfig {
        flows_max: 100_000,
        ..TrackerConfig::default()
    };
    let mut tracker = Tracker::new(&config, Secret::random());
    let (mut flows, mut ids) = (Vec::new(), BTreeSet::new());
    let mut ended = |flow| flows.push(flow);
    if let Ok(mut reader) = CaptureReader::open(path) {
        while let Ok(1..) = reader.fill() {
            for meta in reader.records() {
                let link_type = reader.interfaces()[usize::from(meta.interface)].link_type;
                let data = &reader.memory()[meta.offset..][..meta.captured_len as usize];
                ids.extend(community_id(&parse(link_type, data), 7));
                let told = (meta.time_ns, meta.wire_len);
                tracker.packet((meta.interface, link_type), told, data, &mut ended);
            }
        }
    }
    tracker.finish(&mut ended);
    (flows, ids)
}

fn schema(shared: &Path) -> Schema {
    let path = shared.join("reference/suricata-eve-schema.json");
    Schema(serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap())
}

#[test]
fn lines_are_valid_and_have_the_community_ids_of_their_packets() {
    let Some(shared) = shared() else { return };
    let schema = schema(&shared);
    let (mut lines, mut out) = (0, Vec::new());
    for path in captures(&shared.join("traces")) {
        let shown = path.display();
        let (flows, of_packets) = read(&path);
        let mut of_flows = BTreeSet::new();
        for ended in &flows {
            out.clear();
            let about = FlowContext {
                interface: Some("eth0"),
                community_id_seed: 7,
            };
            let is_written = flow(&mut out, ended, &about);
            assert_eq!(
                is_written,
                ended.flow.key().endpoints().is_some(),
                "{shown}"
            );
            if !is_written {
                continue;
            }
            assert_eq!(
                out.iter().position(|byte| *byte == b'\n'),
                Some(out.len() - 1)
            );
            let mut line: Value = serde_json::from_slice(&out).unwrap();
            let ours = line.as_object_mut().unwrap().remove("retroscope");
            assert!(ours.is_some_and(|ours| ours.is_object()));
            let faults = schema.faults(&line);
            assert!(faults.is_empty(), "{shown}: {faults:?}");
            let id = line.get("community_id").and_then(Value::as_str);
            of_flows.extend(id.map(str::to_owned));
            lines += 1;
        }
        assert_eq!(of_flows, of_packets, "{shown}");
    }
    assert!(lines > 1000, "only {lines} lines");
}

#[test]
fn events_are_valid() {
    let Some(shared) = shared() else { return };
    let mut out = Vec::new();
    let body = json!({"kind": "triggered", "dump": 1});
    event(&mut out, 1_795_374_903_123_456_999, &body).unwrap();
    let mut line: Value = serde_json::from_slice(&out).unwrap();
    let ours = line.as_object_mut().unwrap().remove("retroscope");
    assert_eq!(ours, Some(body));
    let faults = schema(&shared).faults(&line);
    assert!(faults.is_empty(), "{faults:?}");
}

#[test]
fn the_schema_finds_faults() {
    let Some(shared) = shared() else { return };
    let schema = schema(&shared);
    let stamp = "2026-11-22T19:15:03.123456+0000";
    let wrong = [
        json!({"timestamp": stamp}),
        json!({"timestamp": "2026-11-22T19:15:03.123456Z", "event_type": "flow"}),
        json!({"timestamp": stamp, "event_type": "flow", "vlan": []}),
        json!({"timestamp": stamp, "event_type": "flow", "flow": {"age": "1"}}),
        json!({"timestamp": stamp, "event_type": "flow", "tcp": {"state": "new", "sin": true}}),
        json!({"timestamp": stamp, "event_type": "flow", "ours": 1}),
    ];
    for value in wrong {
        assert_eq!(schema.faults(&value).len(), 1, "{value}");
    }
}
