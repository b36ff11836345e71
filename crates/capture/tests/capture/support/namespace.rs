//! Network namespaces for tests, removed after the test. The tests of the program use this file
//! too.

use std::{
    fs::File,
    os::fd::AsFd,
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace of one test. It is removed when the value is dropped, also after a panic.
#[derive(Debug)]
pub(crate) struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes a namespace that has only its loopback interface, which is down, and no IPv6. Prints
    /// SKIP and returns `None` if this is not possible. `tag` is the end of the namespace's name.
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
                // IPv6 would send neighbour discovery at any time.
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
        namespace.add_veth("v0", "v1");
        Some(namespace)
    }

    /// Adds a veth pair, up and silent.
    pub(crate) fn add_veth(&self, one: &str, other: &str) {
        self.enter(|| {
            ip(&format!("link add {one} type veth peer name {other}"));
            ip(&format!("link set {one} up"));
            ip(&format!("link set {other} up"));
        });
        self.wait_for_carrier(one);
        self.wait_for_carrier(other);
    }

    /// The name of the namespace in arguments of `ip`.
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

    /// Runs `ip` in this namespace; it must succeed.
    pub(crate) fn ip(&self, arguments: &str) {
        self.enter(|| ip(arguments));
    }

    /// Waits until an interface is up and has a carrier.
    pub(crate) fn wait_for_carrier(&self, interface: &str) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let has_carrier = || {
            let list = retroscope_capture::af_packet::interfaces().unwrap();
            list.iter().any(|one| one.name == interface && one.running)
        };
        self.enter(|| {
            while !has_carrier() {
                assert!(
                    Instant::now() < deadline,
                    "{interface} of {} has no carrier",
                    self.name
                );
                std::thread::yield_now();
            }
        });
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .status();
    }
}

/// Runs `ip` in the calling thread's namespace; it must succeed.
pub(crate) fn ip(arguments: &str) {
    let output = try_ip(arguments);
    assert!(
        output.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Runs `ip` in the calling thread's namespace.
pub(crate) fn try_ip(arguments: &str) -> Output {
    let arguments = arguments.split(' ');
    Command::new("ip").args(arguments).output().unwrap()
}
