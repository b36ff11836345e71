//! Network namespaces that go away with the test.

use std::{
    fs::File,
    os::fd::AsFd,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace of this test's own, removed when the value is dropped, also by a panic.
#[derive(Debug)]
pub(crate) struct Namespace {
    name: String,
}

impl Namespace {
    /// A namespace with nothing but its loopback interface, which is down, and without IPv6. Says so and returns `None` where that is not
    /// possible. `tag` is for people.
    pub(crate) fn new(tag: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIP: needs root for network namespaces");
            return None;
        }
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("rs-{}-{number}-{tag}", std::process::id());
        match Command::new("ip").args(["netns", "add", &name]).status() {
            Ok(status) if status.success() => {
                let namespace = Self { name };
                // IPv6 would send neighbour discovery whenever it likes.
                namespace.enter(|| {
                    for scope in ["all", "default"] {
                        let path = format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6");
                        let _ = std::fs::write(path, "1");
                    }
                });
                Some(namespace)
            }
            outcome => {
                eprintln!("SKIP: 'ip netns add' does not work here: {outcome:?}");
                None
            }
        }
    }

    /// A namespace with the two ends of a veth pair, `v0` and `v1`, up and silent.
    pub(crate) fn with_veth(tag: &str) -> Option<Self> {
        let namespace = Self::new(tag)?;
        namespace.enter(|| {
            ip("link add v0 type veth peer name v1");
            ip("link set v0 up");
            ip("link set v1 up");
            namespace.wait_for_carrier("v0");
        });
        Some(namespace)
    }

    /// Its name, as `ip` takes it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` on a thread inside the namespace.
    pub(crate) fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{}", self.name)).unwrap();
        std::thread::scope(|scope| {
            let run = || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                work()
            };
            match scope.spawn(run).join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Waits until both ends of the pair are up. Called inside the namespace.
    pub(crate) fn wait_for_carrier(&self, interface: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let list = retroscope_capture::af_packet::interfaces().unwrap();
            if list.iter().any(|one| one.name == interface && one.running) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{interface} of {} has no carrier",
                self.name
            );
            std::thread::yield_now();
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .status();
    }
}

/// Runs `ip` in the calling thread's namespace.
pub(crate) fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
