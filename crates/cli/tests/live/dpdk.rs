//! DPDK in the whole program: device names, privileges, refusals, and files left after the end.

use std::path::Path;

use crate::{
    namespace::Namespace,
    privileges::{
        NOBODY, NOTHING, OPEN_FOLDER, THEIR_FOLDER, WRITE_ANYWHERE, assert_all, assert_given_up,
        record_one, threads,
    },
    recorder::{PROGRAM, Recorder, run},
    shared,
    traffic::{Sender, udp},
};

/// One recorder captures from a DPDK device and from a kernel interface. With `-Z`, all threads run
/// as that user and keep no capability, also DPDK's own thread.
#[test]
fn a_device_stands_beside_an_interface_and_gives_up_its_privileges() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("dpriv") else {
        return;
    };
    let user = format!("{NOBODY}:{NOBODY}");
    let arguments = [
        "-i",
        "dpdk:net_af_packet0,iface=v1",
        "-i",
        "v0",
        "--ring",
        "128MiB",
        "--future",
        "10ms",
        "--dump",
        "$iface and $flow",
        "--trigger",
        "udp port 60000",
        "--single",
        "-Z",
        &user,
    ];
    let recorder = Recorder::start_wrapped(&namespace, &OPEN_FOLDER, &arguments);
    assert_given_up(&recorder);
    assert_all(&recorder, "Uid", &[NOBODY; 4].join("\t"));
    assert_eq!(record_one(&namespace, recorder).to_string(), NOBODY);
}

/// Root without `-Z` keeps CAP_DAC_OVERRIDE to write to a directory of another user. DPDK runs one
/// thread, which writes nothing and keeps no capability, with each of three memory settings.
#[test]
fn no_thread_of_dpdk_keeps_anything() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("dkeep") else {
        return;
    };
    let device = "dpdk:net_af_packet0,iface=v1";
    let rest = "--ring 64MiB --future 10ms --single --trigger";
    for eal in [
        "eal-args=",
        "eal-args=--no-huge",
        "eal-args=--no-huge --legacy-mem",
    ] {
        let arguments = [
            &["-i", device, "--set", eal],
            &rest.split(' ').collect::<Vec<_>>()[..],
            &["udp"],
        ];
        let recorder = Recorder::start_wrapped(&namespace, &THEIR_FOLDER, &arguments.concat());
        let threads = threads(&recorder);
        let (dpdks, ours): (Vec<_>, Vec<_>) = threads
            .iter()
            .partition(|(name, _)| name.starts_with("eal-") || name.starts_with("rte_"));
        assert_eq!(dpdks.len(), 1, "{eal}: {threads:?}");
        assert_eq!(dpdks[0].1, NOTHING, "{eal}: {threads:?}");
        let has_right = ours.iter().any(|(_, set)| set == WRITE_ANYWHERE);
        assert!(has_right, "{eal}: {threads:?}");
        assert_eq!(record_one(&namespace, recorder), 0);
    }
}

#[test]
fn nothing_is_left_and_the_ledger_closes() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("dleft") else {
        return;
    };
    let recorder = Recorder::start(
        &namespace,
        "--engine dpdk --device net_af_packet0,iface=v1 --ring 64MiB --future 10ms --trigger udp[0:2]=1099",
    );
    let folder = format!(
        "/var/run/dpdk/retroscope-{}",
        recorder.pid().as_raw_nonzero()
    );
    assert!(!Path::new(&folder).exists(), "not even while it runs");
    let mut sender = Sender::new(&namespace, "v0");
    for port in 1000..1100 {
        sender.send(&udp(1, port, 60000, b"dpdk"));
    }
    recorder.dumps(1);
    let outcome = recorder.stop();
    let source = &outcome.json["sources"][0];
    assert_eq!(source["name"], "net_af_packet0,iface=v1");
    assert_eq!(
        (&source["received"], &source["stored"]),
        (&100.into(), &100.into()),
        "{source}"
    );
    assert!(
        source["lost"]["nic"].is_null(),
        "the driver does not count: {source}"
    );
    assert!(outcome.said("net_af_packet0,iface=v1 (dpdk, "));
    assert!(!Path::new(&folder).exists());
}

#[test]
fn refusals_are_one_sentence() {
    let _machine = shared();
    let Some(namespace) = Namespace::with_veth("drefuse") else {
        return;
    };
    let refused = |arguments: &[&str]| {
        let line = [&[PROGRAM, "record", "-q", "--engine", "dpdk"], arguments].concat();
        run(&namespace, &[], &line)
    };
    let (code, said) = refused(&["-i", "v1"]);
    assert!(
        code == 2 && said.contains("net_af_packet0,iface=v1"),
        "{code}: {said}"
    );
    let (code, said) = refused(&["-i", "net_null0", "--set", "eal-args=-l 0-1"]);
    assert!(code == 2 && said.contains("cpus"), "{code}: {said}");
    let (code, said) = refused(&["-i", "net_null0", "-Q", "in"]);
    assert!(code == 2 && said.contains("-Q"), "{code}: {said}");
    let (code, said) = refused(&["-i", "net_pcap0,rx_pcap=/no/such"]);
    assert!(code == 1 && said.contains("/no/such"), "{code}: {said}");
}
