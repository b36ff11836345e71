use std::net::{IpAddr, Ipv6Addr};

use retroscope_flow::{TopRow, TrafficVolume};
use retroscope_packet::{FlowEndpoint, FlowKey};

use super::*;

fn volume(packets: u64, bytes: [u64; 2]) -> TrafficVolume {
    TrafficVolume { packets, bytes }
}

fn flow(addr: &str, proto: u8) -> BiflowKey {
    let addr: IpAddr = addr.parse().unwrap();
    let low = FlowEndpoint { addr, port: 443 };
    let high = match addr {
        IpAddr::V4(_) => "192.168.100.200".parse().unwrap(),
        IpAddr::V6(_) => Ipv6Addr::from([0xff; 16]).into(),
    };
    let high = FlowEndpoint {
        addr: high,
        port: 51_324,
    };
    BiflowKey::from(match proto {
        TCP | UDP => FlowKey::Ports { proto, low, high },
        _ => FlowKey::Ip {
            proto,
            low: addr,
            high: high.addr,
        },
    })
}

/// A report of 10 s with 80 Mbit/s. The three rows have about a quarter of the bytes.
fn report() -> TopReport {
    let row = |key, volume| TopRow {
        subject: TopSubject::Flow(key),
        flows: 1,
        volume,
    };
    TopReport {
        rows: vec![
            row(flow("10.0.0.1", TCP), volume(30_000, [1, 19_999_999])),
            row(flow("fe80::1", UDP), volume(10_000, [4_000_000, 10])),
            row(flow("10.0.0.9", 47), volume(5, [1_000_000, 0])),
        ],
        total: volume(100_000, [60_000_000, 40_000_000]),
        untracked: volume(1, [60, 0]),
        flows: 1234,
        span_ns: 10_000_000_000,
    }
}

fn about(by: TopOrder) -> About {
    About {
        title: "eth0\n".to_owned(),
        by,
        lost: 7,
    }
}

#[test]
fn rows_and_all_others_are_the_sum() {
    let lines = table(&report(), &about(TopOrder::Bits), (80, 24));
    let expected = "\
last 10 s: 80.000 Mbit/s, 10000 pps, 1234+ flows; lost 7; eth0?
    Mbit/s        pps  share proto     from > to
    16.000     3000.0  20.0% TCP       192.168.100.200:51324 > 10.0.0.1:443
     3.200     1000.0   4.0% UDP       [fe80::1]:443 > [ffff:ffff:ffff:ffff:ffff
     0.800        0.5   1.0% GRE       10.0.0.9 > 192.168.100.200
    60.000     5999.5  75.0%           all others";
    assert_eq!(lines.join("\n"), expected);
    let lines = table(&report(), &about(TopOrder::Packets), (80, 4));
    let expected = "\
last 10 s: 80.000 Mbit/s, 10000 pps, 1234+ flows; lost 7; eth0?
       pps     Mbit/s  share proto     from > to
    3000.0     16.000  30.0% TCP       192.168.100.200:51324 > 10.0.0.1:443
    7000.0     64.000  70.0%           all others";
    assert_eq!(lines.join("\n"), expected);
}

/// If the table is sorted by flows, each row is a host. A flow counts for both of its hosts, so the
/// rows overlap, and the table must not have a row with the sum of the remaining hosts.
#[test]
fn hosts_have_flows() {
    let mut report = report();
    let [host, _] = flow("10.0.0.1", TCP).hosts();
    report.rows = vec![TopRow {
        subject: TopSubject::Host(host),
        flows: 617,
        volume: volume(1000, [0, 5_000_000]),
    }];
    let lines = table(&report, &about(TopOrder::Flows), (60, 24));
    let expected = "\
last 10 s: 80.000 Mbit/s, 10000 pps, 1234+ flows; lost 7; et
     flows     Mbit/s host
       617      4.000 10.0.0.1";
    assert_eq!(lines.join("\n"), expected);
}

#[test]
fn it_fits_any_terminal() {
    for (width, height) in [(0, 0), (1, 1), (12, 2), (40, 3), (59, 6), (200, 100)] {
        for by in [TopOrder::Bits, TopOrder::Flows] {
            let lines = table(&report(), &about(by), (width, height));
            assert!(lines.len() <= height, "{lines:?}");
            assert!(lines.iter().all(|line| line.len() <= width), "{lines:?}");
        }
    }
}
