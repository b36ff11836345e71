//! Measures up to which packet rate the recorder loses no packet. Needs a release build.
//!
//! `cargo test --release -p retroscope-cli --test live speed::the_highest -- --ignored --nocapture`

use crate::{
    namespace::Namespace,
    quiet,
    recorder::Recorder,
    traffic::{self, Sender},
};

/// Records three seconds of traffic at each of seven rates from 250 kpps to 2 Mpps. Prints for each
/// rate the reached rate, the losses, and the recorder's CPU time per packet. Every sent packet
/// must be accounted for.
#[test]
#[ignore = "a measurement: takes a minute of an idle machine"]
fn the_highest_rate_without_loss() {
    let _machine = quiet();
    let Some(namespace) = Namespace::with_veth("rates") else {
        return;
    };
    let rates = [
        250_000, 500_000, 750_000, 1_000_000, 1_250_000, 1_500_000, 2_000_000,
    ];
    for rate in rates {
        let recorder = Recorder::start(&namespace, "-i v1 --ring 512MiB --trigger arp");
        let mut sender = Sender::new(&namespace, "v0");
        let before = crate::recorder::cpu_time(recorder.pid());
        let took = sender.flood(rate * 3, Some(rate), traffic::number, |_, _| {});
        let outcome = recorder.stop();
        let ledger = outcome.source();
        assert_eq!(ledger.received, sender.sent());
        let reached = sender.sent() as f64 / took.as_secs_f64();
        let cpu = (outcome.cpu - before).as_nanos() as f64 / sender.sent() as f64;
        let lapped = &outcome.json["analyzers"]["missed"];
        eprintln!(
            "asked {rate} pps, sent {reached:.0} pps, lost {}, not analyzed {lapped}, {cpu:.0} ns of CPU a packet",
            ledger.lost
        );
    }
}
