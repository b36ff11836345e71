//! The engines from outside: files, and interfaces of network namespaces of their own, for which it takes root and `ip`. Tests that are not
//! root say SKIP.

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
