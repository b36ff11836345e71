//! The terminal while a screen is on it: another screen without a cursor, and keys that come at
//! once. However the program ends, a panic included, it is then as it was before.

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

/// The other screen (xterm's private modes), without a cursor.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[2J";
/// All that the other way round.
const LEAVE: &[u8] = b"\x1b[m\x1b[?25h\x1b[?1049l";

/// What the terminal was like before it was ours; `None`: it is not.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// See the module. Its signals are rare: SeqCst.
#[derive(Debug)]
pub(crate) struct Terminal {
    stops: Arc<AtomicBool>,
    goes_on: Arc<AtomicBool>,
    drawn: (usize, usize),
    has_colors: bool,
}

/// A line of a screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScreenLine {
    pub(crate) text: String,
    pub(crate) look: LineStyle,
}

/// How a line stands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineStyle {
    Plain,
    Heading,
    /// Red, or bold where no colors are wanted: no-color.org.
    Alarm,
}

impl ScreenLine {
    /// As much as fits; what comes from the network does nothing to a terminal.
    pub(crate) fn new(text: &str, look: LineStyle, width: usize) -> Self {
        let printable = |char: char| if matches!(char, ' '..='~') { char } else { '?' };
        let text = text.chars().map(printable).take(width).collect();
        Self { text, look }
    }
}

impl Terminal {
    /// That of stdout; `None`: it is none.
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

    /// What was typed since the last call, up to the first escape sequence.
    pub(crate) fn keys(&self) -> Vec<u8> {
        if before().is_none() {
            // It was given back in a panic, and reading would wait for a line.
            return Vec::new();
        }
        let mut typed = [0; 64];
        // A terminal is open for reading too, as a rule.
        let len = rustix::io::read(stdout(), &mut typed).unwrap_or(0);
        let keys = typed[..len].iter().copied();
        keys.take_while(|key| *key != 0x1b).collect()
    }

    /// Whether its size has changed since the last call, or it is ours again. Stops the process
    /// where it is asked to, as ^Z does.
    pub(crate) fn is_changed(&mut self) -> bool {
        let size = self.size();
        let mut is_changed = std::mem::replace(&mut self.drawn, size) != size;
        if self.stops.swap(false, SeqCst) {
            leave();
            // Returns when the process goes on.
            let _ = emulate_default_handler(SIGTSTP);
            self.goes_on.store(true, SeqCst);
        }
        if self.goes_on.swap(false, SeqCst) {
            // After SIGSTOP the shell has changed its modes.
            enter();
            is_changed = true;
        }
        is_changed
    }

    /// Width and height in characters; 80 by 24 where it does not know.
    pub(crate) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (size.ws_col.into(), size.ws_row.into())
            }
            _ => (80, 24),
        }
    }

    /// Draws lines that fit, over what is there.
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

/// A terminal that hangs up is no error: SIGHUP tells it.
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
    // ^S would stop the table until ^Q, and ^\ end the program with the terminal as it is.
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

/// Gives it back, if it is ours.
pub(crate) fn leave() {
    if let Some(modes) = before().take() {
        let _ = tcsetattr(stdout(), OptionalActions::Now, &modes);
        write(LEAVE);
    }
}
