//! Inserters alone: two against one, and DPDK's packets against a loop that frees them.

use std::time::Duration;

use crate::{
    contest::Failure,
    inserters,
    measure::{Entrant, Spread},
    pin,
    session::{Session, SessionError},
};

pub(super) const TWO_VS_ONE: &str = "recorder/inserters/2-vs-1";
pub(super) const NULL_VS_BARE: &str = "capture/dpdk/net-null-vs-bare";

/// Both of them.
pub(super) fn rows(session: &mut Session) -> Result<(), SessionError> {
    if session.wants(TWO_VS_ONE) {
        let ratio = two_over_one(session);
        session.ratio(TWO_VS_ONE, "one inserter", ratio)?;
    }
    if session.wants(NULL_VS_BARE) {
        let ratio = null_over_bare(session);
        session.ratio(NULL_VS_BARE, "rx_burst and free", ratio)?;
    }
    Ok(())
}

fn two_over_one(session: &Session) -> Result<Spread, Failure> {
    if pin::cores() < 2 {
        let why = "two inserters need two cores; there is one";
        return Err(Failure::CannotRun(why.to_owned()));
    }
    let scale = session.scale();
    let duration = Duration::from_secs_f64(scale.seconds);
    let entrant = |name: &'static str, threads| {
        Entrant::new(name, move || {
            inserters::generated(scale.ring_bytes, 64, threads, duration)
        })
    };
    let entrants = vec![entrant("one", 1), entrant("two", 2)];
    super::throughput::run("inserters", &scale, entrants).ratio("two", "one")
}

#[cfg(feature = "dpdk")]
fn null_over_bare(session: &Session) -> Result<Spread, Failure> {
    let scale = session.scale();
    let duration = Duration::from_secs_f64(scale.seconds);
    let entrants = vec![
        Entrant::new("net_null", || {
            inserters::null::into_ring(scale.ring_bytes, 64, duration)
        }),
        Entrant::new("bare", || inserters::null::bare(64, duration)),
    ];
    super::throughput::run("net_null", &scale, entrants).ratio("net_null", "bare")
}

#[cfg(not(feature = "dpdk"))]
fn null_over_bare(_: &Session) -> Result<Spread, Failure> {
    let why = "built without the feature dpdk, which needs libdpdk-dev";
    Err(Failure::CannotRun(why.to_owned()))
}
