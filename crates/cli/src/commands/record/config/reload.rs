//! Reading the file of `--config` again while the recording runs: all of it is taken over, or
//! nothing.

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

use retroscope_recorder::{Action, Change, Config, RecorderHandle};

use super::{Assignment, ConfigRule, Loaded, Setting as _, Settings, What, check::Depth};
use crate::{commands::record::service::Notify, failure::say};

/// Options that may change while the recording runs; of rules those that are expressions may.
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

/// Reads the file again, for whoever asks: SIGHUP, a command, the API.
#[derive(Debug)]
pub(crate) struct Reloader {
    path: PathBuf,
    flags: Vec<Assignment>,
    handle: RecorderHandle,
    notify: Notify,
    followed: Mutex<FollowedConfig>,
}

/// What the recording goes by.
#[derive(Debug)]
struct FollowedConfig {
    settings: Settings,
    rules: Vec<ConfigRule>,
    config: Config,
}

impl Reloader {
    /// For a recording that was started with this. `notify` hears when the file is read, and when
    /// that is over. `None`: there is no file.
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

    /// Reads the file and makes the recording follow it. Returns what that changed, in words, and
    /// whether it changed anything. One call at a time; may take as long as the compilation of
    /// rules, and as looking up names.
    ///
    /// # Errors
    /// All that is wrong, in lines; the recording goes on as it was.
    pub(crate) fn reload(&self) -> Result<(String, bool), String> {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        self.notify.reloading();
        let told = self.follow(&mut followed);
        self.notify.ready();
        told
    }

    fn follow(&self, followed: &mut FollowedConfig) -> Result<(String, bool), String> {
        let loaded = Loaded::new(Some(&self.path), &self.flags);
        let loaded = loaded.map_err(|refused| refused.text())?;
        let name = self.path.display();
        let fixed = fixed(&loaded, followed);
        if !fixed.is_empty() {
            let fixed = Vec::from_iter(fixed).join(", ");
            return Err(format!(
                "{name}: {fixed} cannot change while the recording runs: nothing was changed, restart it for that"
            ));
        }
        loaded
            .check(Depth::Reload)
            .map_err(|refused| refused.text())?;
        let config = loaded.followed(followed.config.clone());
        let config = config.map_err(|failure| format!("{name}: {}", failure.message()))?;
        let told = self.handle.reload(&config);
        let told = told.map_err(|error| format!("{name}: {error}"))?;
        *followed = FollowedConfig {
            rules: loaded.rules(),
            settings: loaded.settings,
            config,
        };
        Ok((format!("{name}: {told}"), !told.is_empty()))
    }

    /// Starts a thread that reloads whenever it is asked to, and says what came of it. Returns how
    /// to ask: what is asked while it is busy is done once.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn serve(self: Arc<Self>) -> io::Result<SyncSender<()>> {
        let (ask, asked) = sync_channel(1);
        // It ends with the process, or with who asks.
        Builder::new().name("reload".to_owned()).spawn(move || {
            while asked.recv().is_ok() {
                let reloaded = self.reload();
                let change = Change::new("SIGHUP", None, Action::Reload);
                self.handle.tell_change(match &reloaded {
                    Ok((told, _)) => change.with(told),
                    Err(why) => change.failed(why),
                });
                match reloaded {
                    Ok((told, _)) => say(&format!("reloaded {told}")),
                    Err(why) => {
                        why.lines().for_each(say);
                        say("the recording goes on as it was");
                    }
                }
            }
        })?;
        Ok(ask)
    }
}

/// What differs that cannot change.
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
