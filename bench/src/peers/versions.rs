//! Which versions of the peers were measured.
//!
//! The build script finds them: those of crates in `Cargo.lock`, those of Debian's packages by `dpkg-query`.

/// Name and version of every peer of this build, in the order of [`all`](super::all). `unknown` where the build could not
/// tell.
pub fn versions() -> Vec<(&'static str, &'static str)> {
    #[cfg_attr(
        not(feature = "peers"),
        expect(unused_mut, reason = "the native peers are added with the feature")
    )]
    let mut versions = vec![
        ("rtrb", env!("VERSION_OF_RTRB")),
        ("crossbeam-queue", env!("VERSION_OF_CROSSBEAM_QUEUE")),
        ("crossbeam-channel", env!("VERSION_OF_CROSSBEAM_CHANNEL")),
        ("kanal", env!("VERSION_OF_KANAL")),
        ("flume", env!("VERSION_OF_FLUME")),
    ];
    #[cfg(feature = "peers")]
    versions.extend([
        (
            "libreaderwriterqueue-dev",
            env!("VERSION_OF_LIBREADERWRITERQUEUE_DEV"),
        ),
        (
            "libconcurrentqueue-dev",
            env!("VERSION_OF_LIBCONCURRENTQUEUE_DEV"),
        ),
        ("libdpdk-dev", env!("VERSION_OF_LIBDPDK_DEV")),
    ]);
    versions
}
