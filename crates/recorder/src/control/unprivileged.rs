//! Threads without capabilities, whatever the recorder's caller has kept: capabilities(7).
//!
//! Who writes dumps may need one, as root does for a directory of somebody else; the dumper's thread tries dump filters as well. Those
//! who take packets and try triggers on them, and who makes machine code, need none: their sources are open, and they write nothing.

use std::{
    io,
    panic::resume_unwind,
    thread::{Builder, scope},
};

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

/// Runs `start` on a thread that has no capabilities, and waits for it. Threads that it starts have none either, for good.
///
/// # Errors
/// The system's, where it gives no thread or takes no capabilities.
pub(crate) fn without_capabilities<T: Send>(start: impl FnOnce() -> T + Send) -> io::Result<T> {
    let run = || {
        let none = CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, none)?;
        Ok(start())
    };
    scope(|scope| {
        let thread = Builder::new().name("starter".to_owned());
        let outcome = thread.spawn_scoped(scope, run)?.join();
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::thread::capabilities;

    use super::*;

    #[test]
    fn threads_have_none_and_their_caller_keeps_its_own() {
        let before = capabilities(None).unwrap();
        if before.permitted.is_empty() {
            eprintln!("SKIP: needs root");
            return;
        }
        let later = || thread::spawn(|| capabilities(None).unwrap().permitted);
        let started = without_capabilities(later).unwrap();
        assert_eq!(started.join().unwrap(), CapabilitySet::empty());
        assert_eq!(capabilities(None).unwrap(), before);
    }
}
