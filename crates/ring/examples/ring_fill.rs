//! How long a ring takes to get its memory, by backing, and which pages it gets.
//!
//! `cargo run --release -p retroscope-ring --example ring_fill -- 4 anonymous` (GiB; `anonymous`, `memfd`, or a file's path).
//! As many threads fill as the process has cores: compare with `taskset -c 0 target/release/examples/ring_fill 4 anonymous`.
//! The first run after a while pays for the host's memory on a virtual machine; compare later ones.
#![expect(clippy::print_stdout, reason = "prints a result")]

use std::{env, error::Error, time::Instant};

use retroscope_ring::{Backing, Ring, RingConfig};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let gib: u64 = arguments.next().unwrap_or("1".into()).parse()?;
    let backing = match arguments.next().as_deref() {
        None | Some("anonymous") => Backing::Anonymous,
        Some("memfd") => Backing::Memfd,
        Some(path) => Backing::File(path.into()),
    };
    let config = RingConfig {
        backing,
        ..RingConfig::new(gib << 30, 1, 1)
    };
    let start = Instant::now();
    let ring = Ring::new(&config, None)?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{gib} GiB in {seconds:.2} s, {:.1} GB/s, pages: {}",
        ring.bytes() as f64 / seconds / 1e9,
        ring.pages()
    );
    Ok(())
}
