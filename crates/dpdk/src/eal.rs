//! DPDK's environment (EAL): its arguments, and the environment of this process.
//!
//! A process starts the environment once, and keeps it until the process ends, because DPDK cannot
//! start the environment again. The environment gets only the main lcore, which does not receive:
//! the recorder's threads receive, and register with the environment.
//! If all devices are vdevs, the environment runs without hugepages by default. It never makes
//! files in /run to which other processes can attach.

use std::{
    cell::RefCell,
    io,
    sync::{Mutex, PoisonError, mpsc},
    time::Duration,
};

use rustix::thread::{CpuSet, sched_getaffinity};

use super::{
    device::DpdkDevice,
    sys::{self, Environment, ThreadRegistration},
};
use retroscope_capture::SourceError;

/// How to start the environment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EalConfig {
    /// Arguments as DPDK's programs take them before `--`. Some missing arguments get a default.
    pub arguments: Vec<String>,
    /// All devices that will be opened. They determine whether the environment searches for PCI
    /// devices and needs hugepages.
    pub devices: Vec<String>,
}

/// Default MiB of memory without hugepages. The system allocates the memory when it is used.
const MEMORY_MIB: u32 = 512;

/// Refused arguments, each with a replacement. Most would create lcores or a thread that keeps all
/// privileges, or would end the program.
const REFUSED: [(&str, &str); 11] = [
    ("--telemetry", "--json"),
    ("-l", "cpus"),
    ("-c", "cpus"),
    ("-s", "cpus"),
    ("-S", "cpus"),
    ("--lcores", "cpus"),
    ("--main-lcore", "cpus"),
    ("-h", "man dpdk-testpmd"),
    ("--help", "man dpdk-testpmd"),
    ("-v", "pkg-config --modversion libdpdk"),
    ("--version", "pkg-config --modversion libdpdk"),
];

/// Arguments that choose the origin of the memory.
const MEMORY: [&str; 7] = [
    "--no-huge",
    "--in-memory",
    "--huge-dir",
    "--huge-unlink",
    "--socket-mem",
    "--single-file-segments",
    "--legacy-mem",
];

/// The running environment, once it was started.
static RUNNING: Mutex<Option<&'static Environment>> = Mutex::new(None);

impl EalConfig {
    /// The arguments for DPDK, the program's name first.
    ///
    /// # Errors
    /// [`SourceError::Usage`].
    fn resolve(&self, cpus: &[usize], process: u32) -> Result<Vec<String>, SourceError> {
        let usage = |message: String| SourceError::Usage(message);
        let says = |names: &[&str]| {
            self.arguments.iter().any(|argument| {
                let said = argument.split('=').next().unwrap_or_default();
                names.iter().any(|name| matches_option(said, name))
            })
        };
        for (name, instead) in REFUSED {
            // `-l0-3` means the same as `-l 0-3`.
            let is_glued = |argument: &String| name.len() == 2 && argument.starts_with(name);
            if says(&[name]) || self.arguments.iter().any(is_glued) {
                return Err(usage(format!(
                    "eal-args: {name} is not for here: use {instead}"
                )));
            }
        }
        let devices = self
            .devices
            .iter()
            .map(|text| text.parse::<DpdkDevice>())
            .collect::<Result<Vec<_>, _>>()?;
        let mut arguments = vec!["retroscope".to_owned()];
        let are_vdevs = devices.iter().all(DpdkDevice::is_vdev);
        if !says(&MEMORY) {
            // A NIC usually needs hugepages, into which it can write. With `--in-memory` they
            // vanish with the process. Vdevs need no hugepages.
            let pages = if are_vdevs {
                "--no-huge"
            } else {
                "--in-memory"
            };
            arguments.push(pages.to_owned());
            let is_sized = self.arguments.iter().any(|one| one.starts_with("-m"));
            if are_vdevs && !is_sized {
                arguments.extend(["-m".to_owned(), MEMORY_MIB.to_string()]);
            }
        }
        // No files for other processes to attach to, and no thread that answers other processes.
        // Such a thread would keep all privileges.
        let is_alone = says(&["--in-memory", "--no-shconf"]);
        if !is_alone && arguments.iter().all(|one| one != "--in-memory") {
            arguments.push("--no-shconf".to_owned());
        }
        if !says(&["-a", "--allow", "-b", "--block", "--no-pci"]) {
            let pci = devices.iter().filter(|device| device.is_pci());
            // Without this list, the environment takes all PCI devices that it finds.
            let allowed: Vec<String> = pci
                .flat_map(|device| ["-a".to_owned(), device.full()])
                .collect();
            if allowed.is_empty() {
                arguments.push("--no-pci".to_owned());
            }
            arguments.extend(allowed);
        }
        if !says(&["--file-prefix"]) {
            arguments.push(format!("--file-prefix=retroscope-{process}"));
        }
        arguments.push("--no-telemetry".to_owned());
        let cpus: Vec<String> = cpus.iter().map(ToString::to_string).collect();
        arguments.push(format!("--lcores=0@({})", cpus.join(",")));
        arguments.extend(self.arguments.iter().cloned());
        Ok(arguments)
    }
}

/// Whether DPDK may take `said` for the option `name`: getopt_long(3) accepts an abbreviation of a
/// long option. It refuses an ambiguous abbreviation, so the answer of this function does not
/// matter then.
fn matches_option(said: &str, name: &str) -> bool {
    let is_long = said.len() > 2 && said.starts_with("--");
    said == name || (is_long && name.starts_with(said))
}

/// The environment of this process, started as `config` says unless it is already running.
///
/// # Errors
/// [`SourceError`].
pub(super) fn environment(config: &EalConfig) -> Result<&'static Environment, SourceError> {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(environment) = *running {
        return Ok(environment);
    }
    let system = |call, error| SourceError::system("DPDK", call, error);
    let set = sched_getaffinity(None).map_err(|error| system("sched_getaffinity", error.into()))?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .collect();
    let arguments = config.resolve(&cpus, std::process::id())?;
    let keep_quiet = !arguments
        .iter()
        .any(|argument| argument.starts_with("--log-level"));
    // Start on a separate thread, because the environment sets the affinity of the starting thread,
    // which becomes the main lcore.
    let started = std::thread::scope(|scope| {
        let start = || sys::start(&arguments, keep_quiet);
        scope
            .spawn(start)
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("it panicked")))
    });
    let environment = started.map_err(|error| refused("rte_eal_init", "DPDK", error))?;
    let environment: &'static Environment = Box::leak(Box::new(environment));
    *running = Some(environment);
    Ok(environment)
}

/// The error of a call, with DPDK's messages.
pub(super) fn refused(call: &'static str, device: &str, error: io::Error) -> SourceError {
    let said = sys::take_log();
    let said = said
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("; ");
    let error = match (said.is_empty(), error.raw_os_error()) {
        (true, _) => error,
        (false, Some(libc::EPERM | libc::EACCES)) => {
            io::Error::new(io::ErrorKind::PermissionDenied, said)
        }
        (false, Some(_)) => io::Error::new(error.kind(), said),
        (false, None) => io::Error::new(error.kind(), format!("{error} ({said})")),
    };
    SourceError::system(device, call, error)
}

/// How long [`on_own_thread`] waits until the environment's own thread has done the work.
const OWN_THREAD_WAIT: Duration = Duration::from_secs(2);

/// Runs `work` on DPDK's interrupt thread, and waits up to 2 s for the outcome. `None`: the
/// environment is not running. For properties of threads: credentials and capabilities.
///
/// # Errors
/// The system's error if `work` was not run. [`io::ErrorKind::TimedOut`] if the outcome did not
/// arrive in time; `work` may still run later.
pub fn on_own_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    let running = *RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(environment) = running else {
        return Ok(None);
    };
    let (sender, receiver) = mpsc::channel();
    environment.on_own_thread(Box::new(move || {
        // The waiting thread may have timed out.
        let _ = sender.send(work());
    }))?;
    let outcome = receiver.recv_timeout(OWN_THREAD_WAIT);
    outcome
        .map(Some)
        .map_err(|_| io::ErrorKind::TimedOut.into())
}

thread_local! {
    static REGISTERED: RefCell<Option<ThreadRegistration>> = const { RefCell::new(None) };
}

/// Registers the calling thread with the environment, for the thread's lifetime. An unregistered
/// thread also gets packets, but more slowly.
pub(super) fn register_thread(environment: &Environment) -> io::Result<()> {
    REGISTERED.with_borrow_mut(|registered| {
        if registered.is_none() {
            *registered = Some(environment.register_thread()?);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(arguments: &str, devices: &[&str]) -> String {
        let config = EalConfig {
            arguments: arguments.split_whitespace().map(str::to_owned).collect(),
            devices: devices.iter().map(|&one| one.to_owned()).collect(),
        };
        match config.resolve(&[0, 3], 7) {
            Ok(arguments) => arguments.join(" "),
            Err(error) => error.to_string(),
        }
    }

    const REST: &str = "--file-prefix=retroscope-7 --no-telemetry --lcores=0@(0,3)";

    #[test]
    fn vdevs_need_no_hugepages() {
        assert_eq!(
            resolved("", &["net_null0", "net_ring0"]),
            format!("retroscope --no-huge -m 512 --no-shconf --no-pci {REST}")
        );
        assert_eq!(
            resolved("-m 64", &["net_null0"]),
            format!("retroscope --no-huge --no-shconf --no-pci {REST} -m 64")
        );
        assert_eq!(
            resolved("--in-memory", &["net_null0"]),
            format!("retroscope --no-pci {REST} --in-memory")
        );
    }

    #[test]
    fn a_nic_needs_them_and_no_other_nic_is_taken() {
        assert_eq!(
            resolved("", &["03:00.0,mprq_en=1", "net_null0"]),
            format!("retroscope --in-memory -a 0000:03:00.0,mprq_en=1 {REST}")
        );
        assert_eq!(
            resolved("-b 04:00.0 --no-huge", &["03:00.0"]),
            format!("retroscope --no-shconf {REST} -b 04:00.0 --no-huge")
        );
    }

    #[test]
    fn no_other_process_can_attach() {
        for memory in MEMORY {
            for device in ["net_null0", "03:00.0"] {
                let arguments = resolved(memory, &[device]);
                let alone = ["--no-shconf", "--in-memory"]
                    .map(|name| arguments.split(' ').filter(|&one| one == name).count());
                let expected = if memory == "--in-memory" {
                    [0, 1]
                } else {
                    [1, 0]
                };
                assert_eq!(alone, expected, "{arguments}");
            }
        }
        let given = resolved("--no-shconf --no-huge", &["net_null0"]);
        assert_eq!(given.matches("--no-shconf").count(), 1, "{given}");
        let message = resolved("--telemetry", &["net_null0"]);
        assert!(message.starts_with("eal-args: --telemetry "), "{message}");
    }

    #[test]
    fn lcores_are_not_for_the_user() {
        for wrong in ["-l 0-3", "-l0-3", "-c f", "--lcores=0", "-h", "--version"] {
            let message = resolved(wrong, &["net_null0"]);
            assert!(message.starts_with("eal-args: -"), "{wrong}: {message}");
        }
        for (short, long) in [
            ("--telem", "--telemetry"),
            ("--lco=0", "--lcores"),
            ("--main=1", "--main-lcore"),
            ("--he", "--help"),
            ("--ver", "--version"),
        ] {
            let message = resolved(short, &["net_null0"]);
            let expected = format!("eal-args: {long} ");
            assert!(message.starts_with(&expected), "{short}: {message}");
        }
        // These arguments do not abbreviate a refused option, so DPDK gets each unchanged.
        for fine in ["--log-level=8", "--vdev=net_null1", "--"] {
            let arguments = resolved(fine, &["net_null0"]);
            assert!(arguments.ends_with(fine), "{arguments}");
        }
    }

    #[test]
    fn what_is_said_by_its_first_letters_is_said() {
        assert_eq!(
            resolved("--in-mem --no-p --file-p=x", &["net_null0"]),
            "retroscope --no-telemetry --lcores=0@(0,3) --in-mem --no-p --file-p=x"
        );
    }

    #[test]
    fn interfaces_are_devices() {
        assert!(resolved("", &["eth0"]).contains("net_af_packet0,iface=eth0"));
    }
}
