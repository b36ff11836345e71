//! Triggers with separate windows, at the same time.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use retroscope_capture::{Source, clock::SystemClock, file::FileSource};
use retroscope_packet::LinkType;
use retroscope_pcapfile::{PcapOptions, PcapWriter};

use crate::{
    Config, DumpReport, Recorder, RecorderSummary, TriggerRequest, Verdict,
    tests::{
        live::{START, config, packets},
        rig::{MS, Rig, RigConfig, S, udp},
    },
};

fn request(past_ms: u64, future_ms: u64) -> TriggerRequest {
    TriggerRequest {
        past: Some(Duration::from_millis(past_ms)),
        future: Some(Duration::from_millis(future_ms)),
        ..TriggerRequest::default()
    }
}

pub(crate) fn offline(directory: &Path) -> Config {
    Config {
        offline: true,
        ring_bytes: 32 << 20,
        triggers: vec!["udp port 9".to_owned()],
        past: Duration::from_secs(2),
        future: Duration::from_secs(1),
        hold: Duration::from_secs(1),
        directory: Some(directory.to_owned()),
        reproducible: true,
        ..Config::default()
    }
}

pub(crate) fn write(path: &Path, packets: &[(i64, Vec<u8>)]) {
    let file = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    let mut writer = PcapWriter::new(file, PcapOptions::new(LinkType::RAW)).unwrap();
    for (time_ns, data) in packets {
        let wire_len = u32::try_from(data.len()).unwrap();
        writer.record(*time_ns, wire_len, data).unwrap();
    }
    writer.finish().unwrap();
}

pub(crate) fn record(config: &Config, capture: &Path) -> RecorderSummary {
    let sources = || Ok(vec![Box::new(FileSource::new(capture)) as Box<dyn Source>]);
    let files = [capture.to_owned()];
    let clock = Arc::new(SystemClock);
    let recorder = Recorder::start(config, &sources, &files, clock, None, &mut || Ok(()));
    let summary = recorder.unwrap().join();
    assert!(!summary.panicked && summary.errors.is_empty());
    summary
}

pub(crate) fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(directory).unwrap();
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read(&path).unwrap())
    };
    files.map(read).collect()
}

fn assert_window(report: &DumpReport, sent: &[i64], (past_ns, future_ns): (i64, i64)) {
    let window = report.trigger_ns - past_ns..=report.trigger_ns.saturating_add(future_ns);
    let expected: Vec<i64> = sent
        .iter()
        .copied()
        .filter(|ns| window.contains(ns))
        .collect();
    let found: Vec<i64> = packets(report).iter().map(|packet| packet.0).collect();
    assert_eq!(found, expected, "{report:?}");
    assert_eq!(report.verdict, Verdict::Complete, "{report:?}");
}

/// Each dump has the window that its trigger requests. The sidecar names the requester, if any, cut
/// to 256 bytes.
#[test]
fn live_each_trigger_has_its_own_window() {
    let dir = tempfile::tempdir().unwrap();
    let requests = [request(10, 20), request(1500, 3000)];
    let plan = RigConfig {
        triggers: &["udp port 9", "udp port 10", "udp port 11"],
        requests: &requests,
        ..config()
    };
    let mut rig = Rig::new(&plan, START, dir.path());
    rig.pass(2 * S);
    let by_hand = TriggerRequest {
        asked_by: Some("ä".repeat(200)),
        ..request(100, 50)
    };
    let (mut sent, mut ends) = (Vec::new(), Vec::new());
    for ms in 0..6000 {
        let now_ns = START + 2 * S + ms * MS;
        sent.push(now_ns);
        let port = match ms {
            1999 => 10,
            2000 => 9,
            2001 => 11,
            _ => 7,
        };
        rig.arrive(0, udp(1, port, 0));
        rig.insert();
        if ms == 2010 {
            rig.trigger(by_hand.clone());
            // This trigger requests the same window, and joins the dump of the first manual
            // trigger.
            rig.trigger(TriggerRequest {
                asked_by: None,
                ..by_hand.clone()
            });
            rig.trigger(TriggerRequest::default());
        }
        rig.step();
        rig.pass(MS);
        ends.resize(rig.reports.len(), now_ns);
    }
    rig.stop();
    let windows: BTreeMap<u64, (&str, (i64, i64))> = BTreeMap::from([
        (1, ("udp port 10", (1500 * MS, 3000 * MS))),
        (2, ("udp port 9", (10 * MS, 20 * MS))),
        (3, ("udp port 11", (2 * S, S))),
        (4, ("manual", (100 * MS, 50 * MS))),
        (5, ("manual", (2 * S, S))),
    ]);
    assert_eq!(rig.reports.len(), windows.len(), "{:?}", rig.reports);
    for (report, end_ns) in rig.reports.iter().zip(ends) {
        let (rule, window) = windows[&report.number];
        assert_eq!(report.rule, rule);
        assert_window(report, &sent, window);
        let over_ns = report.trigger_ns + window.1;
        assert!((over_ns..over_ns + 50 * MS).contains(&end_ns), "{report:?}");
        let kept = (report.number == 4).then(|| "ä".repeat(128));
        assert_eq!(report.asked_by, kept);
        let sidecar = std::fs::read(report.file.with_extension("json")).unwrap();
        let sidecar: serde_json::Value = serde_json::from_slice(&sidecar).unwrap();
        assert_eq!(sidecar["asked_by"].as_str(), kept.as_deref());
        let suppressed = u64::from(report.number == 4);
        assert_eq!(sidecar["suppressed"], suppressed);
    }
}

/// A second run gives the same result.
#[test]
fn from_files_each_rule_has_its_own_window() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    let mut sent = Vec::new();
    let mut frames = Vec::new();
    for n in 0..20_000_i64 {
        let time_ns = START + n * MS;
        let port = match n {
            _ if n % 5000 == 4000 => 10,
            _ if n % 5000 == 4001 => 9,
            _ => 7,
        };
        let mut packet = udp(1, port, 0);
        packet.resize(3000, 0);
        frames.push((time_ns, packet));
        sent.push(time_ns);
    }
    write(&capture, &frames);
    let windows = [(0, 10 * MS), (2500 * MS, 4000 * MS)];
    for single in [false, true] {
        let runs = ["one", "two"].map(|name| {
            let out = dir.path().join(format!("{name}{single}"));
            let config = Config {
                triggers: vec!["udp port 9".to_owned(), "udp port 10".to_owned()],
                requests: vec![request(0, 10), request(2500, 4000)],
                single,
                ..offline(&out)
            };
            let summary = record(&config, &capture);
            for report in &summary.dumps {
                let rule = usize::from(report.rule == "udp port 10");
                let (past_ns, future_ns) = windows[rule];
                assert_window(report, &sent, (past_ns, future_ns));
            }
            let hits = summary.hits;
            assert_eq!(hits.triggers, if single { 1 } else { 8 }, "{hits:?}");
            contents(&out)
        });
        assert!(runs[0] == runs[1]);
    }
}
