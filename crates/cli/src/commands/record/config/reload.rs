//! Reading the file of `--config` again while the recording runs: all of it is taken over, or nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{SyncSender, sync_channel},
    },
    thread::Builder,
};

use clap::{Arg, Command};
use retroscope_recorder::{Action, Change, Config, RecorderHandle};

use super::{ConfigRule, Loaded, What, check::Depth, command, keys::option_of};
use crate::{commands::record::service::Notify, failure::say, units};

/// Options that may change while the recording runs; of rules those that are expressions may.
pub(super) const RELOADED: [&str; 16] = [
    "trigger",
    "trigger-dump",
    "trigger-into",
    "trigger-keep",
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
    command_line: Vec<OsString>,
    handle: RecorderHandle,
    notify: Notify,
    followed: Mutex<Followed>,
}

/// What the recording goes by.
#[derive(Debug)]
struct Followed {
    given: BTreeMap<String, Vec<OsString>>,
    rules: Vec<ConfigRule>,
    config: Config,
}

impl Reloader {
    /// For a recording that was started with this. `notify` hears when the file is read, and when that is over.
    pub(crate) fn new(
        loaded: &Loaded,
        config: Config,
        handle: RecorderHandle,
        notify: Notify,
    ) -> Self {
        let followed = Followed {
            given: loaded.given.clone(),
            rules: loaded.args.rules.clone(),
            config,
        };
        Self {
            path: loaded.path.clone(),
            command_line: loaded.command_line.clone(),
            handle,
            notify,
            followed: Mutex::new(followed),
        }
    }

    /// Reads the file and makes the recording follow it. Returns what that changed, in words, and whether it changed anything. One call at a time; may take
    /// as long as the compilation of rules, and as looking up names.
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

    fn follow(&self, followed: &mut Followed) -> Result<(String, bool), String> {
        let loaded = Loaded::new(&self.path, &self.command_line);
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
        let config = loaded.args.followed(followed.config.clone());
        let config = config.map_err(|failure| format!("{name}: {}", failure.message()))?;
        let told = self.handle.reload(&config);
        let told = told.map_err(|error| format!("{name}: {error}"))?;
        *followed = Followed {
            given: loaded.given,
            rules: loaded.args.rules,
            config,
        };
        Ok((format!("{name}: {told}"), !told.is_empty()))
    }

    /// Starts a thread that reloads whenever it is asked to, and says what came of it. Returns how to ask: what is asked while it is busy is done once.
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

/// Whether values of an option say the same in other words: `1GiB` is `1024MiB`.
fn are_same(command: &Command, option: &str, new: &[OsString], old: &[OsString]) -> bool {
    let names = option_of(command, option).and_then(Arg::get_value_names);
    let read = |text: &OsString| {
        let text = text.to_str()?;
        match names?.first()?.as_str() {
            "SIZE" => units::size_or_none(text).ok().map(u128::from),
            "TIME" => units::duration(text).ok().map(|time| time.as_nanos()),
            _ => None,
        }
    };
    let mut pairs = new.iter().zip(old);
    new.len() == old.len() && pairs.all(|(new, old)| read(new).is_some() && read(new) == read(old))
}

/// What differs that cannot change.
fn fixed(loaded: &Loaded, followed: &Followed) -> BTreeSet<String> {
    let options = loaded.given.keys().chain(followed.given.keys());
    let command = command();
    let differs = |option: &&String| {
        let (new, old) = (loaded.given.get(*option), followed.given.get(*option));
        let is_same = new == old
            || (new.zip(old)).is_some_and(|(new, old)| are_same(&command, option, new, old));
        !RELOADED.contains(&option.as_str()) && !is_same
    };
    let options = options.filter(differs).cloned();
    let is_script = |rule: &&ConfigRule| !matches!(rule.what, What::Filter(_));
    let scripts = |rules: &[ConfigRule]| -> Vec<ConfigRule> {
        rules.iter().filter(is_script).cloned().collect()
    };
    let (new, old) = (scripts(&loaded.args.rules), scripts(&followed.rules));
    let mut differing = options.collect::<BTreeSet<String>>();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_the_same_has_not_changed() {
        let command = command();
        let are_same = |option: &str, new: &[&str], old: &[&str]| {
            let read = |texts: &[&str]| texts.iter().map(OsString::from).collect::<Vec<_>>();
            are_same(&command, option, &read(new), &read(old))
        };
        assert!(are_same("ring", &["1GiB"], &["1024MiB"]));
        assert!(are_same("history-goal", &["90s"], &["1.5m"]));
        assert!(!are_same("ring", &["1GiB"], &["1000MiB"]));
        assert!(!are_same("ring", &["1GiB", "1GiB"], &["1024MiB"]));
        assert!(!are_same("ring", &["much"], &["more"]));
        assert!(!are_same("name", &["1s"], &["1"]));
        assert!(!are_same("no-such-option", &["1s"], &["1"]));
    }
}
