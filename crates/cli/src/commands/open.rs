//! `retroscope open`: opens the recorder's page in a browser.

use std::{
    env,
    process::{Command, ExitCode, Stdio},
};

use retroscope_api::client::{ApiRequest, Method};

use super::remote::{RemoteArgs, ask};
use crate::failure::{Failure, put, say};

/// The program that starts the desktop's browser.
const OPENER: &str = "xdg-open";

/// Open the page of a running recorder in a browser.
///
/// Print a link that logs in once, within 60 s, and start the browser with it. Over the unix socket
/// the page then has the role admin.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit codes: 0 done, 1 refused, or no recorder there, 2 wrong arguments.")]
pub(crate) struct Args {
    /// Only print the link. On a machine with other users, paste it into the browser: they can see
    /// the arguments of a browser that this command starts
    #[arg(long)]
    print: bool,

    #[command(flatten)]
    remote: RemoteArgs,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let request = ApiRequest::new(Method::POST, "/v1/links");
    let link = ask(&args.remote.client()?, request)?;
    let url = link["url"].as_str();
    // The text becomes an argument of `xdg-open`. Accept only a web address, because other text
    // could be an option or could start another program.
    let url = url.filter(|url| url.starts_with("http://") || url.starts_with("https://"));
    let url = url.filter(|url| !url.contains(char::is_control));
    let url = url.ok_or_else(|| Failure::failed("this is no answer of a recorder: no link"))?;
    // A proxy may add a path prefix, which the recorder does not know.
    let url = match (args.remote.page(), url.split_once('#')) {
        (Some(page), Some((_, link))) => format!("{page}#{link}"),
        _ => url.to_owned(),
    };
    if !args.print && has_browser() {
        let mut opener = Command::new(OPENER);
        let opener = opener.arg(&url).stdin(Stdio::null()).stdout(Stdio::null());
        if let Err(error) = opener.stderr(Stdio::null()).spawn() {
            say(&format!("{OPENER}: {error}: open the link in a browser"));
        }
    }
    put(&format!("{url}\n"))
}

/// Whether this user probably has a browser. Some browsers refuse to run as root.
fn has_browser() -> bool {
    let is_set = |name: &&str| env::var_os(name).is_some_and(|value| !value.is_empty());
    let has_screen = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(is_set);
    has_screen && !rustix::process::geteuid().is_root()
}
