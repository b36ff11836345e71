//! Filters and rule sets against libpcap's interpreter and code written by hand.
//!
//! - `sys`: libpcap as other programs use it.
//! - `traffic`: generated packets. `hot`: a few hundred of them that stay in the cache. `cold`: as many as a ring of 1 GiB holds.
//! - `handwritten`: the single filters as functions.
//! - `rules`: ten thousand rules, and a naive twin that knows what they match.
//! - `together`: up to 64 filters that nothing is looked up for, one by one and as one function.
//! - `script`: a trigger in Lua.
//!
//! All engines get the same packets in the same loop: 64 frames, then 64 bits that say which of them match. Before anything is
//! timed the engines are compared packet by packet, and after each run with what they said before.

pub(crate) mod cold;
mod handwritten;
pub(crate) mod hot;
pub(crate) mod rules;
pub(crate) mod script;
pub(crate) mod sys;
pub(crate) mod together;
mod traffic;

use std::{sync::LazyLock, thread};

use retroscope_filter::{LinkContext, Mode, Program};
use retroscope_packet::LinkType;

pub(crate) use hot::Case;
use hot::{Pass, each};

use crate::{contest::Failure, pin};

/// What evaluates a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    /// Machine code.
    Native,
    /// Our interpreter, which runs while machine code is made.
    Interpreter,
    /// The system's `bpf_filter`.
    Libpcap,
    /// A function in Rust.
    ByHand,
}

impl Engine {
    pub(crate) const ALL: [Self; 4] =
        [Self::Native, Self::Interpreter, Self::Libpcap, Self::ByHand];

    /// As in names of rows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Interpreter => "interpreter",
            Self::Libpcap => "libpcap",
            Self::ByHand => "handwritten",
        }
    }
}

/// The filter that finds what is looked for in cold memory, and that a script does too.
pub(crate) const PORT: &str = "udp port 60000";
/// What rule sets are compared with.
pub(crate) const PORT_AND_HOST: &str = "tcp port 80 and host 10.0.0.1";

/// The single filters: name, text, the same by hand.
pub(crate) fn singles() -> [(&'static str, String, Pass); 5] {
    [
        ("udp-port", PORT.to_owned(), |frames, verdicts| {
            each(frames, verdicts, |frame| {
                handwritten::udp_port(frame.data())
            });
        }),
        ("tcp-host", PORT_AND_HOST.to_owned(), |frames, verdicts| {
            each(frames, verdicts, |frame| {
                handwritten::tcp_port_and_host(frame.data())
            });
        }),
        (
            "host-or-net",
            "host 192.168.1.1 or net 10.0.0.0/8".to_owned(),
            |frames, verdicts| {
                each(frames, verdicts, |frame| {
                    handwritten::host_or_net(frame.data())
                });
            },
        ),
        (
            "tcp-flags",
            "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0".to_owned(),
            |frames, verdicts| {
                each(frames, verdicts, |frame| {
                    handwritten::tcp_flags(frame.data())
                });
            },
        ),
        ("10-hosts", any_of(&TEN_HOSTS), |frames, verdicts| {
            each(frames, verdicts, |frame| {
                handwritten::ten_hosts(frame.data())
            });
        }),
    ]
}

/// 100 hosts, joined by `or`.
pub(crate) fn hundred_hosts() -> String {
    any_of(&*HUNDRED_HOSTS)
}

fn any_of(hosts: &[u32]) -> String {
    let hosts = hosts
        .iter()
        .map(|host| format!("host {}", std::net::Ipv4Addr::from(*host)));
    hosts.collect::<Vec<_>>().join(" or ")
}

/// Hosts far from each other, of which few packets are.
const TEN_HOSTS: [u32; 10] = scattered(0x2545_f491);
/// The same, more of them.
static HUNDRED_HOSTS: LazyLock<[u32; 100]> = LazyLock::new(|| scattered(0x1234_5679));

/// Addresses without an order, by a linear congruential generator (Knuth, MMIX), below 224.0.0.0 and outside 10.0.0.0/8.
const fn scattered<const N: usize>(seed: u64) -> [u32; N] {
    let mut hosts = [0; N];
    let (mut state, mut index) = (seed, 0);
    while index < N {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let host = (state >> 32) as u32;
        let first = host >> 24;
        if first > 10 && first < 224 && first != 127 {
            hosts[index] = host;
            index += 1;
        }
    }
    hosts
}

/// What all filters here are compiled for.
pub(crate) fn context() -> LinkContext {
    LinkContext {
        link_type: LinkType::ETHERNET,
        snaplen: 0,
        mode: Mode::Savefile,
        optimize: true,
    }
}

/// An expression as machine code.
///
/// # Errors
/// [`Failure::System`]: it cannot be compiled.
pub(crate) fn native(text: &str) -> Result<Program, Failure> {
    let program = retroscope_filter::compile(text, context());
    let program = program.map_err(|error| Failure::system("compiling a filter", error))?;
    let made = program.make_native();
    made.map_err(|error| Failure::system("making machine code", error))?;
    Ok(program)
}

/// Runs something on a thread of its own that stays on one core.
///
/// # Errors
/// [`Failure::Panicked`].
pub(crate) fn on_a_core<T: Send>(run: impl FnOnce() -> T + Send) -> Result<T, Failure> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            pin::pin(0);
            run()
        });
        thread.join().map_err(|_| Failure::Panicked)
    })
}
