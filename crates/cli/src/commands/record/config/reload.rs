//! Reloads the file of `--config` during a recording. If the file has an error, no change applies.

use std::{
    collections::BTreeSet,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{SyncSender, sync_channel},
    },
    thread::Builder,
};

use retroscope_recorder::{Action, Change, CommandError, Config, RecorderHandle};

use super::{Assignment, ConfigRule, Loaded, Setting as _, Settings, What, check::Depth};
use crate::{commands::record::service::Notify, failure::say};

/// Keys that may change during a recording. Of `rule`, rules with `lua` or `module` may not change.
pub(super) const RELOADED: [&str; 14] = [
    "trigger",
    "rule",
    "dump",
    "manual-dump",
    "past",
    "future",
    "dump-packets",
    "dump-bytes",
    "hold-off",
    "max-dumps",
    "dumps-per-minute",
    "bytes-per-hour",
    "when-full",
    "cutoff",
];

/// Reloads the file on request: by SIGHUP, or by the API, which `retroscope reload` uses.
#[derive(Debug)]
pub(crate) struct Reloader {
    path: PathBuf,
    flags: Vec<Assignment>,
    handle: RecorderHandle,
    notify: Notify,
    followed: Mutex<FollowedConfig>,
}

/// The configuration that the recording currently uses.
#[derive(Debug)]
struct FollowedConfig {
    settings: Settings,
    rules: Vec<ConfigRule>,
    config: Config,
}

/// A failed reload.
#[derive(Debug)]
struct ReloadFailure {
    /// A message of one or more lines.
    text: String,
    /// Whether the analyzer is blocked, and usually applies the changes later.
    is_late: bool,
}

impl From<String> for ReloadFailure {
    fn from(text: String) -> Self {
        let is_late = false;
        Self { text, is_late }
    }
}

impl Reloader {
    /// A reloader for a recording that started with this configuration. `notify` receives a message
    /// when a reload starts and when it ends. `None`: there is no file.
    pub(crate) fn new(
        loaded: &Loaded,
        config: Config,
        handle: RecorderHandle,
        notify: Notify,
    ) -> Option<Self> {
        let path = loaded.path.clone()?;
        let followed = FollowedConfig {
            settings: loaded.settings.clone(),
            rules: loaded.rules(),
            config,
        };
        Some(Self {
            path,
            flags: loaded.flags.clone(),
            handle,
            notify,
            followed: Mutex::new(followed),
        })
    }

    /// Reads the file and applies the changes to the recording. Returns the changes in words, and
    /// whether anything changed. Concurrent calls wait for each other. A call may take as long as
    /// compiling the rules, which may look up host names.
    ///
    /// # Errors
    /// A message of one or more lines. Nothing changes, except later if the analyzer is blocked.
    pub(crate) fn reload(&self) -> Result<(String, bool), String> {
        self.apply().map_err(|failure| failure.text)
    }

    fn apply(&self) -> Result<(String, bool), ReloadFailure> {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        self.notify.reloading();
        let told = self.follow(&mut followed);
        self.notify.ready();
        told
    }

    fn follow(&self, followed: &mut FollowedConfig) -> Result<(String, bool), ReloadFailure> {
        let loaded = Loaded::new(Some(&self.path), &self.flags);
        let loaded = loaded.map_err(|refused| refused.text())?;
        let name = self.path.display();
        let fixed = fixed(&loaded, followed);
        if !fixed.is_empty() {
            let fixed = Vec::from_iter(fixed).join(", ");
            let text = format!(
                "{name}: {fixed} cannot change while the recording runs: nothing was changed, restart it for that"
            );
            return Err(text.into());
        }
        loaded
            .check(Depth::Reload)
            .map_err(|refused| refused.text())?;
        let config = loaded.followed(followed.config.clone());
        let config = config.map_err(|failure| format!("{name}: {}", failure.message()))?;
        let told = self.handle.reload(&config);
        let told = told.map_err(|error| ReloadFailure {
            text: format!("{name}: {error}"),
            is_late: matches!(error, CommandError::Late),
        })?;
        *followed = FollowedConfig {
            rules: loaded.rules(),
            settings: loaded.settings,
            config,
        };
        Ok((format!("{name}: {told}"), !told.is_empty()))
    }

    /// Starts a thread that reloads on request and prints the result. Returns the request channel.
    /// Requests during a reload become a single reload.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub(crate) fn serve(self: Arc<Self>) -> io::Result<SyncSender<()>> {
        let (ask, asked) = sync_channel(1);
        // The thread ends with the process, or when the request channel closes.
        Builder::new().name("reload".to_owned()).spawn(move || {
            while asked.recv().is_ok() {
                let change = Change::new("SIGHUP", None, Action::Reload);
                match self.apply() {
                    Ok((told, is_changed)) => {
                        if is_changed {
                            self.handle.tell_change(change.with(&told));
                        }
                        say(&format!("reloaded {told}"));
                    }
                    Err(ReloadFailure { text, is_late }) => {
                        self.handle.tell_change(change.failed(&text));
                        text.lines().for_each(say);
                        if !is_late {
                            say("the recording goes on as it was");
                        }
                    }
                }
            }
        })?;
        Ok(ask)
    }
}

/// Changed keys that cannot change during a recording.
fn fixed(loaded: &Loaded, followed: &FollowedConfig) -> BTreeSet<String> {
    let mut names = Vec::new();
    loaded
        .settings
        .differing(&followed.settings, "", &mut names);
    names.retain(|name| !RELOADED.contains(&name.as_str()));
    let is_script = |rule: &&ConfigRule| !matches!(rule.what, What::Filter(_));
    let scripts = |rules: &[ConfigRule]| -> Vec<ConfigRule> {
        rules.iter().filter(is_script).cloned().collect()
    };
    let (new, old) = (scripts(&loaded.rules()), scripts(&followed.rules));
    let mut differing: BTreeSet<String> = names.into_iter().collect();
    if new != old {
        let others = new.iter().filter(|rule| !old.contains(rule));
        let others = others.chain(old.iter().filter(|rule| !new.contains(rule)));
        let names = others.map(|rule| format!("rule '{}', which is a script", rule.name));
        differing.extend(names);
        if differing.is_empty() {
            differing.insert("the order of rules that are scripts".to_owned());
        }
    }
    differing
}
