//! Tests of the engines through their public interface: files, TCP streams, and interfaces in
//! separate network namespaces. The tests of interfaces need root and `ip`; without root they print
//! SKIP.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "test code, also outside of test functions"
)]

mod af_xdp;
mod af_xdp_away;
mod af_xdp_mtu;
mod captures;
mod live;
mod live_filter;
mod live_send;
mod live_speed;
mod live_spread;
mod live_tcpdump;
mod pcap_live;
mod pcap_over_ip;
mod support;
