//! Users that the Name Service Switch knows and `/etc/passwd` does not, such as users of LDAP and
//! sssd. The library nss_wrapper (cwrap.org, Debian's libnss-wrapper) replaces such a service. The
//! test preloads the library, which answers from files of the test.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

use crate::support::{PROGRAM, skip, stderr};

const WRAPPER: &str = "libnss_wrapper.so";

/// A name service that knows root and `elsewhere` (23456:23457), a member of group 23458.
struct NameService {
    folder: TempDir,
}

impl NameService {
    /// `None`, with a message, if nss_wrapper is not installed.
    fn new() -> Option<Self> {
        // The dynamic linker reports a library that it does not find, and runs the program
        // nevertheless.
        let mut probe = Command::new("true");
        let probe = probe.env("LD_PRELOAD", WRAPPER).output().unwrap();
        if !probe.stderr.is_empty() {
            skip("users of a name service (libnss-wrapper is not installed)");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write(
            "passwd",
            "root:x:0:0::/:/bin/sh\nelsewhere:x:23456:23457::/:/bin/false\n",
        );
        write(
            "group",
            "root:x:0:\nelsewhere:x:23457:\ntaps:x:23458:elsewhere\n",
        );
        let everyone = fs::Permissions::from_mode(0o755);
        fs::set_permissions(folder.path(), everyone).unwrap();
        Some(Self { folder })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Runs `record` with generated packets of one flow.
    fn record(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        command.args(["record", "-i", "generate:flows=1,rate=1kpps", "-w", "dumps"]);
        command.args(["--ring", "64MiB", "--duration", "100ms"]);
        command.args(arguments).current_dir(self.path());
        command.env("LD_PRELOAD", WRAPPER);
        for (variable, file) in [
            ("NSS_WRAPPER_PASSWD", "passwd"),
            ("NSS_WRAPPER_GROUP", "group"),
        ] {
            command.env(variable, self.path().join(file));
        }
        command.output().unwrap()
    }
}

#[test]
fn users_of_the_name_service_are_known() {
    let Some(service) = NameService::new() else {
        return;
    };
    assert!(
        !fs::read_to_string("/etc/passwd")
            .unwrap()
            .contains("elsewhere:")
    );
    for (key, option) in [("relinquish-privileges", "-Z"), ("post-user", "post-user")] {
        let check = |user: &str| {
            let text = format!("post = 'true'\n{key} = '{user}'\n");
            fs::write(service.path().join("c.toml"), text).unwrap();
            service.record(&["--config", "c.toml", "--check-config"])
        };
        let known = check("elsewhere");
        assert_eq!(known.status.code(), Some(0), "{known:?}");
        let unknown = check("nobody");
        let why = format!(
            "c.toml:2:{}: {key}: {option} nobody: no such user",
            key.len() + 4
        );
        assert!(stderr(&unknown).contains(&why), "{unknown:?}");
        assert_eq!(unknown.status.code(), Some(2));
    }
}

#[test]
fn a_recorder_becomes_a_user_of_the_name_service() {
    let Some(service) = NameService::new() else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        skip("becoming a user of a name service (not root)");
        return;
    }
    let identity = service.path().join("dumps/identity");
    let script = r#"grep -E "^(Uid|Gid|Groups):" /proc/self/status > "$0""#;
    let post = format!("sh -c '{script}' {}", identity.display());
    let arguments = [
        "--trigger",
        "udp",
        "--past",
        "0",
        "--future",
        "0",
        "--single",
    ];
    for who in [&["-Z", "elsewhere"][..], &["--set", "post-user=elsewhere"]] {
        let output = service.record(&[&arguments[..], &["--post", &post], who].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let told = fs::read_to_string(&identity).unwrap();
        let ids = |name, id| format!("{name}:\t{id}\t{id}\t{id}\t{id}\n");
        let expected = ids("Uid", 23456) + &ids("Gid", 23457) + "Groups:\t23457 23458 \n";
        assert_eq!(told, expected);
        // The directory for dumps, which the first run creates, belongs to that user too.
        let directory = fs::metadata(service.path().join("dumps")).unwrap();
        assert_eq!((directory.uid(), directory.gid()), (23456, 23457));
        fs::remove_file(&identity).unwrap();
    }
}
