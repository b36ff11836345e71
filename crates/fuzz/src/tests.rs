//! Replays the corpus of the fuzz targets, and random changes of the corpus, on any toolchain.
#![allow(clippy::print_stderr, reason = "a test that prints its seed")]

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use fastrand::Rng;

use crate::TARGETS;

/// Time for changed inputs of each target. `FUZZ_REPLAY_MS` replaces the default.
const CHANGES: Duration = Duration::from_millis(200);
/// Minimum number of inputs of each target.
const INPUTS_MIN: usize = 4;

/// The inputs of a target, by name.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let entries = fs::read_dir(&folder).expect("a folder for each target");
    let mut inputs: Vec<(String, Vec<u8>)> = entries
        .map(|entry| entry.expect("a readable folder").path())
        .map(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            (name.into_owned(), fs::read(&path).expect("a readable file"))
        })
        .collect();
    inputs.sort();
    inputs
}

#[test]
fn the_corpus_breaks_no_promise() {
    for (name, target) in TARGETS {
        let inputs = corpus(name);
        assert!(inputs.len() >= INPUTS_MIN, "{name}: {}", inputs.len());
        for (input, bytes) in inputs {
            let shown = ShownInPanic(&input, &bytes);
            target(&bytes);
            drop(shown);
            target(&bytes[..bytes.len() / 2]);
        }
    }
}

#[test]
fn changed_inputs_break_no_promise() {
    let seed = std::env::var("FUZZ_REPLAY_SEED").ok();
    let seed = seed.map_or_else(
        || fastrand::u64(..),
        |seed| seed.parse().expect("FUZZ_REPLAY_SEED is a number"),
    );
    eprintln!("FUZZ_REPLAY_SEED={seed}");
    let limit = std::env::var("FUZZ_REPLAY_MS").ok().map_or(CHANGES, |ms| {
        Duration::from_millis(ms.parse().expect("FUZZ_REPLAY_MS is a number"))
    });
    for (name, target) in TARGETS {
        let mut random = Rng::with_seed(seed);
        let inputs = corpus(name);
        let start = Instant::now();
        let mut tried = 0;
        while tried < 20 || start.elapsed() < limit {
            let bytes = changed(&inputs, &mut random);
            let shown = ShownInPanic(name, &bytes);
            target(&bytes);
            drop(shown);
            tried += 1;
        }
    }
}

/// An input with some bytes changed, inserted, removed or taken from another input.
fn changed(inputs: &[(String, Vec<u8>)], random: &mut Rng) -> Vec<u8> {
    let (_, first) = &inputs[random.usize(..inputs.len())];
    let mut bytes = first.clone();
    for _ in 0..random.usize(1..8) {
        let at = random.usize(..=bytes.len());
        match random.u8(..5) {
            0 => bytes.insert(at, random.u8(..)),
            1 => bytes.truncate(at),
            2 => {
                let (_, other) = &inputs[random.usize(..inputs.len())];
                let from = random.usize(..=other.len());
                bytes.splice(at.., other[from..].iter().copied());
            }
            3 if at < bytes.len() => _ = bytes.remove(at),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = random.u8(..);
                }
            }
        }
    }
    bytes
}

/// Prints the input that broke a promise, for the corpus.
struct ShownInPanic<'i>(&'i str, &'i [u8]);

impl Drop for ShownInPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let hex: String = self.1.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("{} broke a promise: {hex}", self.0);
        }
    }
}
