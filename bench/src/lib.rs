//! Benchmarks of the ring, the filters, the flow table and whole recorders. The ring is compared
//! with the bandwidth of the machine's memory, with the QQ of 2016, and with third-party queues.
//! Filters are compared with libpcap and handwritten code. Whole recorders run on generated packets
//! in the same process, and on live traffic.
//!
//! [`rows`] lists all measurements, and where each is shown. `make bench-quick` measures the judged
//! rows of ring, recorder, filters and flows, `make bench` also the other rows, `make
//! bench-capture` live capture, `make bench-shed` load shedding. `make papers` measures all of
//! these rows, live capture and load shedding only as root. Figures go to `results.json` in the
//! folder of the run ([`session`]). Facts about the machine go to `machine.json` in the same folder
//! ([`machine`]). The [`report`] module turns both into tables and figures for
//! docs/dev/benchmarks.md, which explains each figure.
//!
//! # How it measures
//!
//! A [`contest::Load`] describes the packets to carry. A contestant implements [`contest::Contest`]
//! and starts its threads through [`contest::race`]. [`measure::Heat`] runs contestants in turns
//! and computes medians and ratios. Counts and checksums verify the runs of
//! queues ([`contest::Run::check`]); a contestant that fails a check has no figure. The ring keeps
//! packets in its own memory. Its opponents keep packets in a [`memory::Memory`] of the same size,
//! which all opponents share, except where a row measures another way of use.
//!
//! # How to add a row
//!
//! Add a line to `rows.txt`, and the entrants that measure it to the function that `rows::MEASURES`
//! lists for its group. A contestant:
//!
//! ```
//! use std::sync::mpsc;
//!
//! use retroscope_bench::{
//!     contest::{Contest, Course, Frames, Load, Run, Tally, race},
//!     measure::Failure,
//!     memory::Memory,
//! };
//!
//! /// The channel of the standard library, one allocation for each packet.
//! struct Mpsc;
//!
//! impl Contest for Mpsc {
//!     fn run(&mut self, load: &Load, _memory: &mut Memory) -> Result<Run, Failure> {
//!         if load.threads() != 2 {
//!             return Err(Failure::CannotRun("one producer and one consumer only".to_owned()));
//!         }
//!         let frames = Frames::new(load.packet_bytes);
//!         let (sender, receiver) = mpsc::sync_channel(1024);
//!         let producer = |_: &Course| {
//!             for number in 0..load.packets_of(0) {
//!                 let packet = (load.time(0, number), frames.get(number).to_vec());
//!                 sender.send(packet).map_err(|error| Failure::system("send", error))?;
//!             }
//!             drop(sender);
//!             Ok(())
//!         };
//!         let consumer = |_: &Course| {
//!             let mut seen = Tally::default();
//!             for (time, data) in receiver {
//!                 seen.add(time, data.len());
//!             }
//!             Ok(seen)
//!         };
//!         race(load, &|| {}, vec![producer], vec![consumer])
//!     }
//! }
//!
//! let load = Load::pairs(64, 1000, 1);
//! let run = Mpsc.run(&load, &mut Memory::new(2 << 20)?)?;
//! run.check(&load)?;
//! # Ok::<(), Failure>(())
//! ```

mod bucket_change;
pub mod capture;
pub mod compare;
pub mod contest;
mod cycles;
mod filter;
mod flow;
mod latency;
mod limits;
pub mod machine;
pub mod measure;
pub mod memory;
mod papers;
mod peers;
mod pin;
mod plot;
mod qq2016;
mod queues;
mod recorder;
pub mod report;
mod ring;
pub mod rows;
pub mod session;
mod thesis;

pub use flow::misses::flow_path;

/// Prints progress to stderr.
#[expect(clippy::print_stderr, reason = "progress of a program for people")]
pub fn say(text: &str) {
    eprintln!("{text}");
}

#[cfg(test)]
mod tests;
