//! Shows a screen on the terminal: the alternate screen without a cursor, and keys without line
//! buffering. [`leave`] restores the terminal, also after a panic.

use std::{
    env,
    io::{self, IsTerminal as _, Write as _, stdout},
    panic,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize,
    tcsetattr,
};
use signal_hook::{
    consts::{SIGCONT, SIGTSTP},
    flag,
    low_level::emulate_default_handler,
};

/// Enters the alternate screen (xterm's private modes), hides the cursor, and clears the screen.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[2J";
/// Resets the text style, shows the cursor, and leaves the alternate screen.
const LEAVE: &[u8] = b"\x1b[m\x1b[?25h\x1b[?1049l";

/// The terminal's modes before [`enter`]. `None`: the terminal is unchanged.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Control of the terminal. Signal handlers set `stops` and `goes_on`.
#[derive(Debug)]
pub(crate) struct Terminal {
    stops: Arc<AtomicBool>,
    goes_on: Arc<AtomicBool>,
    drawn: (usize, usize),
    has_colors: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScreenLine {
    pub(crate) text: String,
    pub(crate) look: LineStyle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineStyle {
    Plain,
    Heading,
    /// Bold, and red unless the user disabled colors: no-color.org.
    Alarm,
}

impl ScreenLine {
    /// Truncates the text to the width. Keeps only printable ASCII, because text from the network
    /// must not control the terminal.
    pub(crate) fn new(text: &str, look: LineStyle, width: usize) -> Self {
        let printable = |char: char| if matches!(char, ' '..='~') { char } else { '?' };
        let text = text.chars().map(printable).take(width).collect();
        Self { text, look }
    }
}

impl Terminal {
    /// Takes over the terminal of stdout. `None`: stdout is no terminal.
    pub(crate) fn take() -> io::Result<Option<Self>> {
        if !stdout().is_terminal() {
            return Ok(None);
        }
        let (stops, goes_on) = (Arc::default(), Arc::default());
        flag::register(SIGTSTP, Arc::clone(&stops))?;
        flag::register(SIGCONT, Arc::clone(&goes_on))?;
        let next = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            leave();
            next(info);
        }));
        enter();
        Ok(Some(Self {
            stops,
            goes_on,
            drawn: (0, 0),
            has_colors: env::var_os("NO_COLOR").is_none_or(|set| set.is_empty()),
        }))
    }

    /// Up to 64 typed bytes. Drops the first escape sequence and the bytes after it.
    pub(crate) fn keys(&self) -> Vec<u8> {
        if before().is_none() {
            // A read would wait for a whole line, for example after a panic restored the terminal.
            return Vec::new();
        }
        let mut typed = [0; 64];
        // A terminal at stdout is usually open for reading too.
        let len = rustix::io::read(stdout(), &mut typed).unwrap_or(0);
        let keys = typed[..len].iter().copied();
        keys.take_while(|key| *key != 0x1b).collect()
    }

    /// Whether the size changed since the last call, or the terminal was taken over again. Stops
    /// the process after ^Z.
    pub(crate) fn is_changed(&mut self) -> bool {
        let size = self.size();
        let mut is_changed = std::mem::replace(&mut self.drawn, size) != size;
        if self.stops.swap(false, SeqCst) {
            leave();
            let _ = emulate_default_handler(SIGTSTP);
            self.goes_on.store(true, SeqCst);
        }
        if self.goes_on.swap(false, SeqCst) {
            // The shell may have changed the terminal's modes while the process was stopped.
            enter();
            is_changed = true;
        }
        is_changed
    }

    /// Width and height in characters. 80 by 24 if the terminal does not report its size.
    pub(crate) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (size.ws_col.into(), size.ws_row.into())
            }
            _ => (80, 24),
        }
    }

    /// Draws the lines over the previous screen. The lines must fit the terminal.
    pub(crate) fn draw(&self, lines: &[ScreenLine]) {
        let (width, height) = self.size();
        let mut text = String::new();
        for (at, ScreenLine { text: line, look }) in lines.iter().enumerate() {
            let [begin, end] = match look {
                LineStyle::Plain => [""; 2],
                LineStyle::Heading => ["\x1b[7m", "\x1b[m"],
                LineStyle::Alarm if self.has_colors => ["\x1b[1;31m", "\x1b[m"],
                LineStyle::Alarm => ["\x1b[1m", "\x1b[m"],
            };
            text += &format!("\x1b[{}H{begin}{line:<width$}{end}", at + 1);
        }
        if lines.len() < height {
            text += &format!("\x1b[{}H\x1b[J", lines.len() + 1);
        }
        if before().is_some() {
            write(text.as_bytes());
        }
    }
}

fn before() -> MutexGuard<'static, Option<Termios>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ignores errors: if the terminal hung up, SIGHUP reports that.
fn write(bytes: &[u8]) {
    let mut out = stdout().lock();
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

fn enter() {
    let mut before = before();
    let Some(modes) = before.clone().or_else(|| tcgetattr(stdout()).ok()) else {
        return;
    };
    *before = Some(modes.clone());
    let mut ours = modes;
    ours.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
    // ^S would freeze the screen until ^Q. ^\ would end the program without restoring the terminal.
    ours.input_modes -= InputModes::IXON;
    for (code, value) in [
        (SpecialCodeIndex::VQUIT, 0),
        (SpecialCodeIndex::VMIN, 0),
        (SpecialCodeIndex::VTIME, 0),
    ] {
        ours.special_codes[code] = value;
    }
    let _ = tcsetattr(stdout(), OptionalActions::Now, &ours);
    write(ENTER);
}

pub(crate) fn leave() {
    if let Some(modes) = before().take() {
        let _ = tcsetattr(stdout(), OptionalActions::Now, &modes);
        write(LEAVE);
    }
}
