//! Network namespaces that go away with the test.

use std::{
    fs::File,
    io,
    os::fd::AsFd,
    process::{Command, Output},
    time::Instant,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::recorder::DEADLINE;

/// A network namespace of this test's own, removed when the value is dropped, also by a panic.
#[derive(Debug)]
pub(crate) struct Namespace {
    name: String,
}

impl Namespace {
    /// A namespace with nothing but its loopback interface, which is down. Says so and returns `None` where that is not
    /// possible. `tag` is unique among the tests of this process.
    pub(crate) fn new(tag: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIP: {tag}: needs root for network namespaces");
            return None;
        }
        let name = format!("rs-live-{}-{tag}", std::process::id());
        match Command::new("ip").args(["netns", "add", &name]).output() {
            Ok(output) if output.status.success() => {}
            outcome => {
                eprintln!("SKIP: {tag}: 'ip netns add' does not work here: {outcome:?}");
                return None;
            }
        }
        let namespace = Self { name };
        namespace.enter(|| {
            // IPv6 would send neighbour discovery whenever it likes.
            for scope in ["all", "default"] {
                let _ =
                    std::fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1");
            }
        });
        Some(namespace)
    }

    /// A namespace with the two ends of a veth pair, `v0` and `v1`, up and silent.
    pub(crate) fn with_veth(tag: &str) -> Option<Self> {
        let namespace = Self::new(tag)?;
        namespace.add_veth("v0", "v1");
        Some(namespace)
    }

    /// Adds a veth pair, up and silent.
    pub(crate) fn add_veth(&self, one: &str, other: &str) {
        self.ip(&format!("link add {one} type veth peer name {other}"));
        self.ip(&format!("link set {one} up"));
        self.ip(&format!("link set {other} up"));
        self.wait_for_carrier(one);
        self.wait_for_carrier(other);
    }

    /// Runs `work` on a thread inside the namespace. What it starts or opens stays there.
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

    /// Runs `ip` here; it must succeed.
    pub(crate) fn ip(&self, arguments: &str) {
        let output = self.try_ip(arguments).unwrap();
        assert!(
            output.status.success(),
            "ip {arguments}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Runs `ip` here.
    pub(crate) fn try_ip(&self, arguments: &str) -> io::Result<Output> {
        self.enter(|| Command::new("ip").args(arguments.split(' ')).output())
    }

    /// Waits until an interface is up and has a carrier.
    pub(crate) fn wait_for_carrier(&self, interface: &str) {
        let deadline = Instant::now() + DEADLINE;
        self.enter(|| {
            loop {
                let list = retroscope_capture::af_packet::interfaces().unwrap();
                if list.iter().any(|one| one.name == interface && one.running) {
                    return;
                }
                assert!(Instant::now() < deadline, "{interface} has no carrier");
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
