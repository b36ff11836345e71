//! Creates and removes the link in Wireshark's extcap folder.

use std::{
    ffi::OsStr,
    fs,
    io::{self, ErrorKind},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use super::NAME;
use crate::{
    commands::program,
    failure::{Failure, put},
};

/// Creates the link and checks that `tshark -D` lists the interface.
pub(super) fn install(directory: Option<&Path>) -> Result<ExitCode, Failure> {
    let directory = directory.map_or_else(folder, |given| Ok(given.to_owned()))?;
    let link = directory.join(NAME);
    let shown = link.display();
    let program = program();
    let failed = |error: io::Error| Failure::failed(format_args!("cannot make {shown}: {error}"));
    fs::create_dir_all(&directory).map_err(failed)?;
    if is_ours(&link)? {
        fs::remove_file(&link).map_err(failed)?;
    }
    symlink(&program, &link).map_err(failed)?;
    let listed = output("tshark", &["-D"]).map_err(|why| {
        Failure::failed(format_args!(
            "{shown} is made, but whether Wireshark finds it is not known: tshark -D: {why}"
        ))
    })?;
    let is_listed = listed
        .lines()
        .any(|line| line.split_whitespace().nth(1) == Some(NAME));
    if !is_listed {
        return Err(Failure::failed(format_args!(
            "{shown} is made, but `tshark -D` does not list {NAME}: `tshark -G folders` tells where it looks"
        )));
    }
    put(&format!(
        "{shown} leads to {}; `tshark -D` lists {NAME}\n",
        program.display()
    ))
}

/// Removes an existing link.
pub(super) fn uninstall(directory: Option<&Path>) -> Result<ExitCode, Failure> {
    let directory = directory.map_or_else(folder, |given| Ok(given.to_owned()))?;
    let link = directory.join(NAME);
    let shown = link.display();
    if !is_ours(&link)? {
        return put(&format!("{shown} is not there\n"));
    }
    fs::remove_file(&link)
        .map_err(|error| Failure::failed(format_args!("cannot remove {shown}: {error}")))?;
    put(&format!("{shown} is removed\n"))
}

/// Returns whether `link` is a link of this program: to this executable, or to a program with the
/// name [`NAME`], even if that program no longer exists. `false`: nothing exists at this path.
///
/// # Errors
/// Another file or link exists at this path, or the path cannot be read.
fn is_ours(link: &Path) -> Result<bool, Failure> {
    let others = |what: &str| {
        let shown = link.display();
        Err(Failure::failed(format_args!(
            "{shown} is {what}: it stays as it is"
        )))
    };
    match fs::read_link(link) {
        Ok(target) => {
            let is_this = fs::canonicalize(link).is_ok_and(|file| file == program());
            if is_this || target.file_name() == Some(OsStr::new(NAME)) {
                Ok(true)
            } else {
                others(&format!("a link to {}", target.display()))
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) if error.kind() == ErrorKind::InvalidInput => others("no link of ours"),
        Err(error) => others(&error.to_string()),
    }
}

/// The user's personal extcap folder. Wireshark reports this folder since version 4.2; in older
/// versions the folder is below the configuration folder.
fn folder() -> Result<PathBuf, Failure> {
    let told = output("tshark", &["-G", "folders"]).map_err(|why| {
        Failure::failed(format_args!(
            "tshark -G folders: {why}: name Wireshark's folder for extcap by --dir"
        ))
    })?;
    of_folders(&told).ok_or_else(|| {
        Failure::failed(
            "`tshark -G folders` tells no folder for extcap of this user: name it by --dir",
        )
    })
}

fn of_folders(told: &str) -> Option<PathBuf> {
    let named = |name: &str| {
        let mut folders = told.lines().filter_map(|line| line.split_once(':'));
        let (_, path) = folders.find(|(what, _)| what.trim().eq_ignore_ascii_case(name))?;
        Some(PathBuf::from(path.trim())).filter(|path| path.is_absolute())
    };
    named("Personal Extcap path").or_else(|| Some(named("Personal configuration")?.join("extcap")))
}

/// Runs a program and returns its stdout.
fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(format!("{}: {words}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_that_of_the_user() {
        let old = "Temp:\t/tmp\nPersonal configuration:\t/root/.config/wireshark\nExtcap path:         \t/usr/lib/wireshark/extcap\n";
        assert_eq!(
            of_folders(old).unwrap(),
            Path::new("/root/.config/wireshark/extcap")
        );
        let new = "Personal configuration: \t/root/.config/wireshark\nPersonal Extcap path:\t/root/.local/lib/wireshark/extcap\n\
                   Global Extcap path:\t/usr/lib/wireshark/extcap\n";
        assert_eq!(
            of_folders(new).unwrap(),
            Path::new("/root/.local/lib/wireshark/extcap")
        );
        assert_eq!(of_folders("Temp:\t/tmp\n"), None);
    }
}
