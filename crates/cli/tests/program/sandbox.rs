//! The sandbox of Wireshark's dissectors. The tests run perl, which every Debian has, in the
//! sandbox. Most perl scripts attempt forbidden acts.

use std::{
    fs,
    io::Write,
    net::{TcpListener, UdpSocket},
    os::unix::net::UnixListener,
    path::Path,
    process::{Command, Output, Stdio},
};

use rustix::io::{FdFlags, fcntl_setfd};

use crate::support::{PROGRAM, skip, stderr, stdout};

const PERL: &str = "/usr/bin/perl";

/// Runs a perl script in the sandbox. The script finds `file`, the packets, at descriptor 3, and
/// reads `rest` from stdin. Returns `None`, with a message, if perl is missing or the machine
/// cannot run the sandbox.
fn run(script: &str, arguments: &[&str], file: &[u8], rest: &[u8]) -> Option<Output> {
    if !Path::new(PERL).exists() {
        skip("there is no perl; the sandbox was not tested");
        return None;
    }
    let mut child = Command::new(PROGRAM)
        .args(["sandbox", PERL, "-e", script])
        .args(arguments)
        .env("RETROSCOPE_SECRET", "token")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = (file.len() as u64).to_le_bytes().to_vec();
    input.extend(file);
    input.extend(rest);
    // The child may end before it reads the input.
    let _ = child.stdin.take().unwrap().write_all(&input);
    let output = child.wait_with_output().unwrap();
    if output.status.code() == Some(117) {
        let why = stderr(&output);
        skip(&format!(
            "no sandbox here ({}); it was not tested",
            why.trim()
        ));
        return None;
    }
    Some(output)
}

/// Attempts an act in the sandbox, where the act must fail. Without the sandbox the same act must
/// succeed, because otherwise the failure proves nothing.
fn refused(what: &str, act: &str, arguments: &[&str]) {
    refused_only(what, act, arguments);
    let script = script(act);
    let mut free = Command::new(PERL);
    free.args(["-e", &script]).args(arguments);
    let Ok(output) = free.stdin(Stdio::null()).output() else {
        return;
    };
    assert_eq!(stdout(&output), "done", "{what}: {}", stderr(&output));
}

/// Attempts an act in the sandbox, where the act must fail. The test does not attempt the act
/// without the sandbox, where the act may fail too, or may do harm.
fn refused_only(what: &str, act: &str, arguments: &[&str]) {
    if let Some(output) = run(&script(act), arguments, b"", b"") {
        let said = stdout(&output);
        assert!(said.starts_with("refused"), "{what}: {said:?}, {output:?}");
    }
}

fn script(act: &str) -> String {
    format!("if ({act}) {{ print 'done' }} else {{ print \"refused $!\" }}")
}

/// Without this test, the other tests could pass because nothing works in the sandbox.
#[test]
fn what_a_dissector_needs_is_permitted() {
    let script = r#"
        open(my $f, '<', '/proc/self/fd/3') or die "packets: $!"; local $/; print <$f>, '|';
        print <STDIN>, '|', join(',', map {"$_=$ENV{$_}"} sort keys %ENV), '|';
        open(my $l, '<', '/etc/ld.so.cache') or die "cache: $!";
        open(my $z, '<', '/dev/null') or die "null: $!";
        opendir(my $d, '/usr/share') or die "share: $!"; print 'read';
    "#;
    let Some(output) = run(script, &[], b"packets\0", b"requests") else {
        return;
    };
    let expected = "packets\0|requests|HOME=/nonexistent,LC_ALL=C.UTF-8,TZ=UTC|read";
    assert_eq!(stdout(&output), expected, "{}", stderr(&output));
}

#[test]
fn files_cannot_be_opened_or_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (token, ring) = (path("tokens"), path("ring"));
    for file in [&token, &ring] {
        fs::write(file, "secret").unwrap();
        refused("read", "open(my $f, '<', $ARGV[0])", &[file]);
        refused("append", "open(my $f, '>>', $ARGV[0])", &[file]);
        // A descriptor with access mode 3 permits neither reading nor writing.
        let open = format!("syscall({}, -100, $ARGV[0], 3) != -1", libc::SYS_openat);
        refused("open for nothing", &open, &[file]);
    }
    refused("list dumps", "opendir(my $d, $ARGV[0])", &[&path("")]);
    refused("create", "open(my $f, '>', $ARGV[0])", &[&path("new")]);
    refused("make a directory", "mkdir($ARGV[0])", &[&path("directory")]);
    refused("link", "symlink('/', $ARGV[0])", &[&path("link")]);
    refused_only("delete", "unlink($ARGV[0])", &[&token]);
    assert_eq!(fs::read(&token).unwrap(), b"secret");
    let read = "open(my $f, '<', $ARGV[0])";
    refused("passwd", read, &["/etc/passwd"]);
    refused("environment", read, &["/proc/self/environ"]);
    for file in ["/etc/shadow", "/proc/1/maps", "/dev/mem"] {
        refused_only(file, read, &[file]);
    }
    let write = "do { $SIG{XFSZ} = 'IGNORE'; my $f; open($f, '+<', '/proc/self/fd/3') && defined(syswrite($f, 'x')) }";
    refused_only("write to the packets", write, &[]);
}

/// Descriptors of the process that starts the sandbox do not reach the child, even without
/// close-on-exec.
#[test]
fn descriptors_are_not_inherited() {
    let folder = tempfile::tempdir().unwrap();
    let secret = fs::File::create(folder.path().join("tokens")).unwrap();
    fcntl_setfd(&secret, FdFlags::empty()).unwrap();
    let list = "for (0..999) { print \"$_ \" if defined(readlink(\"/proc/self/fd/$_\")) }";
    if let Some(output) = run(list, &[], b"", b"") {
        assert_eq!(stdout(&output), "0 1 2 3 ", "{}", stderr(&output));
    }
}

#[test]
fn there_is_no_network() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    let inet = |kind: u8| {
        let address = "Socket::pack_sockaddr_in($ARGV[0], \"\\x7f\\0\\0\\1\")";
        format!(
            "do {{ require Socket; my $s; socket($s, 2, {kind}, 0) && connect($s, {address}) }}"
        )
    };
    let port = |address: std::net::SocketAddr| address.port().to_string();
    refused("TCP", &inet(1), &[&port(tcp.local_addr().unwrap())]);
    refused("UDP", &inet(2), &[&port(udp.local_addr().unwrap())]);
    let address = "Socket::pack_sockaddr_un($ARGV[0])";
    let unix =
        format!("do {{ require Socket; my $s; socket($s, 1, 1, 0) && connect($s, {address}) }}");
    refused("unix", &unix, &[path.to_str().unwrap()]);
    refused("netlink", "socket(my $s, 16, 3, 0)", &[]);
    refused("socket pair", "socketpair(my $a, my $b, 1, 1, 0)", &[]);
    refused_only("packet socket", "socket(my $s, 17, 3, 0)", &[]);
}

#[test]
fn other_processes_are_out_of_reach() {
    let parent = std::process::id().to_string();
    refused(
        "fork",
        "do { my $p = fork; exit if defined($p) && !$p; defined($p) }",
        &[],
    );
    refused("a shell", "system('/bin/true') == 0", &[]);
    refused("a signal", "kill(0, $ARGV[0])", &[&parent]);
    for (what, number, arguments) in calls(&parent) {
        // `$l` is a variable, because perl's syscall cannot pass the address of a literal.
        let act =
            format!("do {{ my $l = pack('QQ', 1, 1); syscall({number}, {arguments}) != -1 }}");
        refused_only(what, &act, &[]);
    }
}

/// System calls as perl's syscall takes them: name, number, arguments.
fn calls(parent: &str) -> Vec<(&'static str, i64, String)> {
    let zeros = "0, 0, 0, 0";
    vec![
        ("ptrace", libc::SYS_ptrace, format!("16, {parent}, 0, 0")),
        (
            "process_vm_readv",
            libc::SYS_process_vm_readv,
            format!("{parent}, {zeros}, 0"),
        ),
        (
            "prlimit64",
            libc::SYS_prlimit64,
            format!("{parent}, 7, $l, 0"),
        ),
        (
            "own prlimit64",
            libc::SYS_prlimit64,
            "0, 9, $l, 0".to_owned(),
        ),
        // F_SETOWN: the process that gets signals about stdin.
        ("fcntl", libc::SYS_fcntl, format!("0, 8, {parent}")),
        ("pidfd_open", libc::SYS_pidfd_open, format!("{parent}, 0")),
        ("unshare", libc::SYS_unshare, "0x10000000".to_owned()),
        ("mount", libc::SYS_mount, format!("{zeros}, 0")),
        ("bpf", libc::SYS_bpf, "0, 0, 0".to_owned()),
        (
            "io_uring_setup",
            libc::SYS_io_uring_setup,
            "1, 0".to_owned(),
        ),
        ("memfd_create", libc::SYS_memfd_create, "$l, 0".to_owned()),
        ("keyctl", libc::SYS_keyctl, format!("{zeros}, 0")),
        (
            "vfork by clone",
            libc::SYS_clone,
            "17, 0, 0, 0, 0".to_owned(),
        ),
        (
            "perf_event_open",
            libc::SYS_perf_event_open,
            format!("{zeros}, 0"),
        ),
    ]
}

#[test]
fn memory_and_processor_time_are_bounded() {
    let Some(output) = run("my $x = 'x' x (2 ** 31); print 'done'", &[], b"", b"") else {
        return;
    };
    assert!(
        !output.status.success() && output.stdout.is_empty(),
        "{output:?}"
    );
    // The kernel enforces these limits. A program in the sandbox may read its limits.
    for (what, resource, limit) in [("processor", 0, 10), ("file size", 1, 0), ("core", 4, 0)] {
        let script = format!(
            "my $l = pack('QQ', 9, 9); syscall({}, 0, {resource}, 0, $l) == 0 or die $!; print join(' ', unpack('QQ', $l))",
            libc::SYS_prlimit64
        );
        let output = run(&script, &[], b"", b"").unwrap();
        assert_eq!(stdout(&output), format!("{limit} {limit}"), "{what}");
    }
    let script = format!(
        "my $l = pack('QQ', 9, 9); syscall({}, 0, {}, 0, $l) == 0 or die $!; print unpack('Q', $l)",
        libc::SYS_prlimit64,
        libc::RLIMIT_NPROC
    );
    let threads = run(&script, &[], b"", b"").unwrap();
    let threads: u64 = stdout(&threads).parse().unwrap();
    let own = rustix::process::getrlimit(rustix::process::Resource::Nproc).current;
    assert!(threads >= 4096, "{threads}");
    if own.is_none_or(|own| own > 50_000) {
        assert!(threads < 50_000, "not limited: {threads}");
    } else {
        eprintln!("SKIP: {own:?} threads are the limit of this test anyway");
    }
}

#[test]
fn without_protection_nothing_runs() {
    // stdin is empty, so the packets are missing and the sandbox must not start the program.
    let mut command = Command::new(PROGRAM);
    command.args(["sandbox", PERL, "-e", "print 'ran'"]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!((output.status.code(), stdout(&output)), (Some(117), ""));
    // The hidden command is not in the help text.
    let help = Command::new(PROGRAM).arg("--help").output().unwrap();
    assert!(!stdout(&help).contains("sandbox"));
}
