//! Builds the shim of the C and C++ peers (feature `peers`), in `shim/`, against Debian's packages.
//!
//! folly has no package. To include it, set `FOLLY_INCLUDE` to the folder that contains
//! `folly/ProducerConsumerQueue.h`, and `FOLLY_LIB` to the folder of libfolly, if folly's headers
//! need the library.

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
        let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
        let questions = ["--cflags", "--libs-only-L", "libdpdk"];
        let said = Command::new(program).args(questions).output();
        let Some(said) = said.ok().filter(|said| said.status.success()) else {
            println!(
                "cargo::error=feature `peers` needs other people's queues: make papers installs them as root"
            );
            return;
        };
        cpp()
            .file("shim/moodycamel.cpp")
            .compile("bench_moodycamel");
        cpp().file("shim/boost_tbb.cpp").compile("bench_boost_tbb");
        println!("cargo::rustc-link-lib=dylib=tbb");
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
        for flag in String::from_utf8_lossy(&said.stdout).split_whitespace() {
            // DPDK's headers are included as system headers, so that the compiler suppresses their
            // warnings. The other flags include the machine flags that DPDK's inline code needs.
            if let Some(folder) = flag.strip_prefix("-I") {
                dpdk.flag("-isystem").flag(folder);
            } else if let Some(folder) = flag.strip_prefix("-L") {
                println!("cargo::rustc-link-search=native={folder}");
            } else {
                dpdk.flag(flag);
            }
        }
        dpdk.file("shim/dpdk.c").compile("bench_dpdk");
        // The shim needs only these two of DPDK's libraries.
        println!("cargo::rustc-link-lib=dylib=rte_ring");
        println!("cargo::rustc-link-lib=dylib=rte_eal");
    }

    fn cpp() -> cc::Build {
        let mut build = cc::Build::new();
        build.cpp(true).std("c++17");
        build
    }
}
