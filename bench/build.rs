//! Builds the shim of the peers that are C and C++ (feature `peers`), in `shim/`, against Debian's packages.
//!
//! folly has no package. Who has it sets `FOLLY_INCLUDE` to the folder that has `folly/ProducerConsumerQueue.h`, and `FOLLY_LIB` to the one
//! that has libfolly, where its headers want it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(folly)");
    #[cfg(feature = "peers")]
    native::build();
}

#[cfg(feature = "peers")]
mod native {
    use std::{env, process::Command};

    pub(super) fn build() {
        println!("cargo::rerun-if-changed=shim");
        for variable in [
            "PKG_CONFIG",
            "PKG_CONFIG_PATH",
            "FOLLY_INCLUDE",
            "FOLLY_LIB",
        ] {
            println!("cargo::rerun-if-env-changed={variable}");
        }
        let flags = pkg_config("--cflags").zip(pkg_config("--libs-only-L"));
        let Some((compiler_flags, library_flags)) = flags else {
            println!(
                "cargo::error=feature `peers` needs other people's queues: apt-get install libreaderwriterqueue-dev libconcurrentqueue-dev libdpdk-dev pkg-config"
            );
            return;
        };
        cpp()
            .file("shim/moodycamel.cpp")
            .compile("bench_moodycamel");
        if let Some(folder) = env::var_os("FOLLY_INCLUDE") {
            println!("cargo::rustc-cfg=folly");
            cpp()
                .include(folder)
                .file("shim/folly.cpp")
                .compile("bench_folly");
        }
        if let Ok(folder) = env::var("FOLLY_LIB") {
            println!("cargo::rustc-link-search=native={folder}");
            println!("cargo::rustc-link-lib=folly");
        }
        let mut dpdk = cc::Build::new();
        // As system headers: their warnings are not ours. The machine flags are DPDK's own, its inline code needs them.
        for flag in compiler_flags.split_whitespace() {
            match flag.strip_prefix("-I") {
                Some(folder) => dpdk.flag("-isystem").flag(folder),
                None => dpdk.flag(flag),
            };
        }
        dpdk.file("shim/dpdk.c").compile("bench_dpdk");
        let folders = library_flags.split_whitespace();
        for folder in folders.filter_map(|flag| flag.strip_prefix("-L")) {
            println!("cargo::rustc-link-search=native={folder}");
        }
        // Of DPDK's many libraries those that have the functions.
        println!("cargo::rustc-link-lib=dylib=rte_ring");
        println!("cargo::rustc-link-lib=dylib=rte_eal");
    }

    fn cpp() -> cc::Build {
        let mut build = cc::Build::new();
        build.cpp(true).std("c++17");
        build
    }

    /// What `pkg-config` says about DPDK; `None` where it does not know it.
    fn pkg_config(question: &str) -> Option<String> {
        let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
        let output = Command::new(program)
            .args([question, "libdpdk"])
            .output()
            .ok()?;
        String::from_utf8(output.stdout)
            .ok()
            .filter(|_| output.status.success())
    }
}
