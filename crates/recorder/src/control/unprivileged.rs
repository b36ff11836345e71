//! Threads without capabilities (capabilities(7)). Threads that parse packets usually need no
//! capability, because their sources are open. A thread that writes dumps may need a capability, as
//! root does for another user's directory.

use std::{
    io,
    panic::resume_unwind,
    thread::{Builder, scope},
};

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

/// Runs `start` on a thread without capabilities, and waits for the result. Threads that `start`
/// creates have no capabilities either.
///
/// # Errors
/// The system's error if it starts no thread, or does not drop the capabilities.
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
