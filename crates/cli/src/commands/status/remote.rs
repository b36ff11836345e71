//! Shows the state of a recorder over HTTP: as a screen on a terminal, as text, or as JSON.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::Builder,
    time::{Duration, Instant},
};

use retroscope_api::client::{ApiAnswer, ApiRequest, Client, ClientError};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

use super::{
    Args,
    view::{Sample, view},
};
use crate::{
    commands::remote::{ask, printable},
    failure::{self, Failure, put, put_json},
    terminal::{self, ScreenLine, Terminal},
};

/// Minimum interval between the starts of two samples.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Time for which the screen waits for a sample before it checks keys and the terminal's size.
const KEY_WAIT: Duration = Duration::from_millis(50);

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let client = args.remote.client()?;
    let first = sample(&client)?;
    if args.json {
        return put_json(&first.status);
    }
    let title = args.remote.shown();
    let terminal = if args.once {
        None
    } else {
        Terminal::take().map_err(Failure::failed)?
    };
    let Some(terminal) = terminal else {
        return put(&text(&view(
            &title,
            &first,
            None,
            None,
            (usize::MAX, usize::MAX),
        )));
    };
    failure::hold();
    let mut screen = StatusScreen {
        title,
        terminal,
        before: None,
        now: first,
        trouble: None,
    };
    let ended = screen.run(client);
    terminal::leave();
    // Leave the last screen visible on the terminal.
    let printed = put(&text(&screen.lines()));
    failure::release();
    ended.and(printed)
}

fn sample(client: &Client) -> Result<Sample, Failure> {
    let status = ask(client, ApiRequest::get("/v1/status"))?;
    let rules = client.send(ApiRequest::get("/v1/rules"));
    let rules = rules.and_then(ApiAnswer::json).map_err(no_rules);
    let taken = Instant::now();
    Ok(Sample {
        status,
        rules,
        taken,
    })
}

/// Why there are no rules, in words.
fn no_rules(error: ClientError) -> String {
    match error {
        ClientError::Refused {
            status: 401 | 403, ..
        } => "not permitted for this token".to_owned(),
        error => format!("unknown: {}", printable(&error.to_string())),
    }
}

fn text(lines: &[ScreenLine]) -> String {
    lines
        .iter()
        .map(|line| format!("{}\n", line.text.trim_end()))
        .collect()
}

struct StatusScreen {
    title: String,
    terminal: Terminal,
    before: Option<Sample>,
    now: Sample,
    /// Why the last sample failed.
    trouble: Option<String>,
}

impl StatusScreen {
    /// Shows the screen until the user quits, or until INT, TERM or HUP arrives.
    fn run(&mut self, client: Client) -> Result<(), Failure> {
        let failed = |error| Failure::failed(format_args!("cannot watch a recorder: {error}"));
        let is_over = Arc::<AtomicBool>::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register(signal, Arc::clone(&is_over)).map_err(failed)?;
        }
        let (telling, news) = sync_channel(0);
        // A separate thread, because requests wait for the network and keys must not.
        let asking = Builder::new().name("status".to_owned());
        let asked = asking.spawn(move || keep_asking(&client, &telling));
        asked.map_err(failed)?;
        let mut is_changed = true;
        while !is_over.load(SeqCst) {
            is_changed |= self.terminal.is_changed();
            if std::mem::take(&mut is_changed) {
                self.terminal.draw(&self.lines());
            }
            if self
                .terminal
                .keys()
                .iter()
                .any(|key| matches!(key, b'q' | b'Q'))
            {
                break;
            }
            is_changed = self.wait(&news);
        }
        Ok(())
    }

    /// Waits up to [`KEY_WAIT`] for a sample. Returns whether the screen must be redrawn.
    fn wait(&mut self, news: &Receiver<Result<Sample, Failure>>) -> bool {
        match news.recv_timeout(KEY_WAIT) {
            Ok(Ok(sample)) => {
                self.before = Some(std::mem::replace(&mut self.now, sample));
                self.trouble = None;
                true
            }
            Ok(Err(why)) => {
                self.trouble = Some(why.to_string());
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => {
                let is_new = self.trouble.is_none();
                self.trouble.get_or_insert_with(|| {
                    "nobody asks any more: please report this bug".to_owned()
                });
                is_new
            }
        }
    }

    fn lines(&self) -> Vec<ScreenLine> {
        let trouble = self.trouble.as_deref();
        let size = self.terminal.size();
        view(&self.title, &self.now, self.before.as_ref(), trouble, size)
    }
}

/// Requests samples until the receiver is gone.
fn keep_asking(client: &Client, telling: &SyncSender<Result<Sample, Failure>>) {
    let mut due = Instant::now() + ASK_EVERY;
    loop {
        let wait = due.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            std::thread::park_timeout(wait);
            continue;
        }
        due = Instant::now() + ASK_EVERY;
        if telling.send(sample(client)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refused_token_is_called_not_permitted() {
        let of_token = |status| {
            no_rules(ClientError::Refused {
                status,
                kind: String::new(),
                is_as_requested: false,
                detail: "busy".to_owned(),
            })
            .contains("not permitted")
        };
        assert!(of_token(401) && of_token(403));
        assert!(!of_token(429) && !of_token(503));
    }
}
