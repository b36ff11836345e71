//! Finds the versions of the peers, and builds the shim of those that are C and C++ (feature `peers`).

use std::path::Path;

/// The peers that are crates, as `Cargo.lock` names them.
const CRATES: [&str; 5] = [
    "rtrb",
    "crossbeam-queue",
    "crossbeam-channel",
    "kanal",
    "flume",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let lock_file = Path::new("../Cargo.lock");
    println!("cargo::rerun-if-changed={}", lock_file.display());
    let lock = std::fs::read_to_string(lock_file).unwrap_or_default();
    for name in CRATES {
        tell_version(name, &locked_versions(&lock, name));
    }
    #[cfg(feature = "peers")]
    native::build();
}

/// Makes `VERSION_OF_NAME` known to `peers/versions.rs`.
fn tell_version(name: &str, version: &str) {
    let version = if version.is_empty() {
        "unknown"
    } else {
        version
    };
    println!(
        "cargo::rustc-env=VERSION_OF_{}={version}",
        name.replace('-', "_").to_uppercase()
    );
}

/// The versions of a package in the text of a `Cargo.lock`: each stands in the line behind the package's name.
fn locked_versions(lock: &str, name: &str) -> String {
    let head = format!("name = \"{name}\"");
    let lines = lock
        .lines()
        .zip(lock.lines().skip(1))
        .filter(|(line, _)| *line == head);
    let versions =
        lines.filter_map(|(_, next)| next.strip_prefix("version = \"")?.strip_suffix('"'));
    versions.collect::<Vec<_>>().join(" or ")
}

/// The shim in `shim/`, compiled against Debian's packages.
#[cfg(feature = "peers")]
mod native {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    /// A package and a header that comes with it.
    const HEADERS: [(&str, &str); 2] = [
        (
            "libreaderwriterqueue-dev",
            "readerwriterqueue/readerwriterqueue.h",
        ),
        (
            "libconcurrentqueue-dev",
            "concurrentqueue/concurrentqueue.h",
        ),
    ];

    pub(super) fn build() {
        println!("cargo::rerun-if-changed=shim");
        println!("cargo::rerun-if-env-changed=PKG_CONFIG");
        println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
        let missing = HEADERS
            .iter()
            .filter(|(_, header)| !has_header(header))
            .map(|(package, _)| *package);
        let mut missing = missing.collect::<Vec<_>>();
        let flags = pkg_config("--cflags").zip(pkg_config("--libs-only-L"));
        let Some((compiler_flags, library_flags)) = flags.filter(|_| missing.is_empty()) else {
            if pkg_config("--cflags").is_none() {
                missing.push("libdpdk-dev");
                missing.push("pkg-config");
            }
            println!(
                "cargo::error=feature `peers` needs other people's queues: apt-get install {}",
                missing.join(" ")
            );
            return;
        };

        cc::Build::new()
            .cpp(true)
            .std("c++17")
            .file("shim/moodycamel.cpp")
            .compile("bench_moodycamel");
        let mut dpdk = cc::Build::new();
        // As system headers: their warnings are not ours. The machine flags are DPDK's own, its inline code needs them.
        for flag in compiler_flags.split_whitespace() {
            match flag.strip_prefix("-I") {
                Some(folder) => dpdk.flag("-isystem").flag(folder),
                None => dpdk.flag(flag),
            };
        }
        dpdk.file("shim/dpdk.c").compile("bench_dpdk");
        for folder in library_flags
            .split_whitespace()
            .filter_map(|flag| flag.strip_prefix("-L"))
        {
            println!("cargo::rustc-link-search=native={folder}");
        }
        // Of DPDK's many libraries those that have the functions.
        println!("cargo::rustc-link-lib=dylib=rte_ring");
        println!("cargo::rustc-link-lib=dylib=rte_eal");

        for package in [
            "libreaderwriterqueue-dev",
            "libconcurrentqueue-dev",
            "libdpdk-dev",
        ] {
            super::tell_version(package, &installed_version(package));
        }
    }

    /// True where the C++ compiler finds the header.
    fn has_header(header: &str) -> bool {
        let folder = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
        let file: &Path = &folder.join("includes.cpp");
        std::fs::write(file, format!("#include <{header}>\n")).is_ok()
            && cc::Build::new()
                .cpp(true)
                .std("c++17")
                .cargo_metadata(false)
                .cargo_warnings(false)
                .file(file)
                .try_expand()
                .is_ok()
    }

    /// What `pkg-config` says about DPDK; `None` where it does not know it.
    fn pkg_config(question: &str) -> Option<String> {
        let program = std::env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
        output(Command::new(program).args([question, "libdpdk"]))
    }

    /// The version of a Debian package, or nothing.
    fn installed_version(package: &str) -> String {
        output(Command::new("dpkg-query").args(["-W", "-f=${Version}", package]))
            .unwrap_or_default()
    }

    fn output(command: &mut Command) -> Option<String> {
        let output = command
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok()
    }
}
