//! Builds the C shim for DPDK (feature `dpdk`), against the library that `pkg-config` finds.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "dpdk")]
    dpdk::build();
}

#[cfg(feature = "dpdk")]
mod dpdk {
    use std::process::Command;

    /// The libraries that the shim needs, for its own calls or through DPDK's inline functions.
    const LIBRARIES: [&str; 5] = [
        "rte_ethdev",
        "rte_mbuf",
        "rte_mempool",
        "rte_ring",
        "rte_eal",
    ];

    pub(super) fn build() {
        println!("cargo::rerun-if-changed=shim");
        println!("cargo::rerun-if-env-changed=PKG_CONFIG");
        println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
        let flags = pkg_config("--cflags").zip(pkg_config("--libs-only-L"));
        let Some((compiler_flags, library_flags)) = flags else {
            println!(
                "cargo::error=feature `dpdk` needs DPDK: apt-get install libdpdk-dev pkg-config"
            );
            return;
        };
        let mut shim = cc::Build::new();
        // Pass include folders as system folders, so that the compiler does not warn about DPDK's
        // headers. Pass all other flags unchanged: DPDK's inline code needs its machine flags
        // (`-m…`).
        for flag in compiler_flags.split_whitespace() {
            match flag.strip_prefix("-I") {
                Some(folder) => shim.flag("-isystem").flag(folder),
                None => shim.flag(flag),
            };
        }
        // Optimize in debug builds too: measurements of an unoptimized data path say nothing.
        shim.opt_level(3)
            .std("gnu11")
            .file("shim/dpdk.c")
            .file("shim/feed.c")
            .compile("retroscope_dpdk");
        let folders = library_flags
            .split_whitespace()
            .filter_map(|flag| flag.strip_prefix("-L"));
        for folder in folders {
            println!("cargo::rustc-link-search=native={folder}");
        }
        for library in LIBRARIES {
            println!("cargo::rustc-link-lib=dylib={library}");
        }
    }

    /// Flags of DPDK from `pkg-config`. `None` if `pkg-config` cannot be run or does not know DPDK.
    fn pkg_config(question: &str) -> Option<String> {
        let program = std::env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
        let output = Command::new(program)
            .args([question, "libdpdk"])
            .output()
            .ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8(output.stdout).ok())?
    }
}
