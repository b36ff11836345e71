//! Checks that the program's own parser accepts the `retroscope …` command lines in [`CHECKED`] and
//! in [`SOURCES`].
//!
//! These pieces of code are command lines:
//!
//! - a line after a prompt in a `console` block, and a line of a `sh` block,
//! - a code span between backticks, and a title of Markdown; in Rust sources only code spans count,
//! - a line of a shell script, and the value of a key such as `ExecStart=`,
//! - a comment line that begins with the command.
//!
//! Two rules apply to incomplete command lines:
//!
//! - A word in capitals (`FILE`, `UID:GID`) is a placeholder for any value. `COMMAND` may be any
//!   command.
//! - `…` replaces arguments. Command lines with `…`, and code spans, may lack required arguments.
//!   Other command lines may lack them with `--config`, because the file may contain the keys.

use std::{
    fs, iter, mem,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use clap::{
    Arg, Command, CommandFactory as _,
    builder::ValueParser,
    error::{ContextKind, ErrorKind},
};

use crate::Cli;

/// Documentation, examples and packaging files.
const CHECKED: [&str; 6] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs",
    "examples",
    "contrib",
];

/// Rust sources, whose comments and messages name commands in code spans.
const SOURCES: [&str; 2] = ["crates/api/src", "crates/cli/src"];

/// Minimum number of whole command lines and of code spans. Lower numbers mean that the extraction
/// misses commands: the workspace had 59 and 146 when this test was written.
const WHOLE_MIN: usize = 50;
const SPANS_MIN: usize = 125;

/// Programs that run another command, which follows their name and options.
const WRAPPERS: [&str; 7] = ["chrt", "env", "exec", "nice", "numactl", "sudo", "taskset"];

/// Programs that run the command that follows them in a container.
const CONTAINERS: [&str; 1] = ["kubectl"];

static CLI: LazyLock<Command> = LazyLock::new(Cli::command);

/// Endings of folder names. `FOLDER/retroscope` is this program if the folder has such an ending.
const PROGRAM_FOLDERS: [&str; 3] = ["bin", "debug", "release"];

#[derive(Debug)]
struct Code {
    text: String,
    is_span: bool,
}

/// The words after the program's name.
#[derive(Debug)]
struct Documented {
    words: Vec<String>,
    is_span: bool,
    /// Whether the document writes the program's name.
    is_explicit: bool,
}

#[test]
fn the_program_takes_every_command_that_is_documented() {
    let mut faults = Vec::new();
    let (mut whole, mut spans) = (0, 0);
    let mut sources = files(&SOURCES);
    sources.retain(|path| !path.ends_with("documented_tests.rs"));
    for path in files(&CHECKED).into_iter().chain(sources) {
        let text = fs::read_to_string(&path).unwrap();
        let commands = commands(&path, &text);
        for command in &commands {
            match command.is_span {
                true => spans += 1,
                false => whole += 1,
            }
            if let Err(why) = parse(command) {
                let line = command.words.join(" ");
                faults.push(format!("{}: `{line}`: {why}", shown(&path)));
            }
        }
        let is_source = path.extension().is_some_and(|it| it == "rs");
        let found = commands.iter().filter(|it| it.is_explicit && is_named(it));
        let (found, mentioned) = (found.count(), mentions(&text));
        if !is_source && found < mentioned {
            faults.push(format!(
                "{}: names {mentioned} commands, of which {found} are code: write a command as code, or the program as Retroscope",
                shown(&path)
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(
        whole >= WHOLE_MIN && spans >= SPANS_MIN,
        "{whole} command lines and {spans} code spans were found"
    );
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn shown(path: &Path) -> String {
    let path = path.strip_prefix(root()).unwrap_or(path);
    path.display().to_string()
}

fn files(paths: &[&str]) -> Vec<PathBuf> {
    let mut waiting: Vec<PathBuf> = paths.iter().map(|path| root().join(path)).collect();
    let mut files = Vec::new();
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).unwrap();
            waiting.extend(entries.map(|entry| entry.unwrap().path()));
        } else if path
            .extension()
            .is_none_or(|it| it != "svg" && it != "png" && it != "json")
        {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Whether the words begin with a command, not with an option.
fn is_named(command: &Documented) -> bool {
    let first = command.words.first();
    first.is_some_and(|it| it.starts_with(|letter: char| letter.is_ascii_lowercase()))
}

fn mentions(text: &str) -> usize {
    let follows = |(at, name): &(usize, &str)| {
        let before = text[..*at].chars().next_back();
        let after = text[at + name.len()..].chars().next();
        before.is_none_or(|it| it.is_whitespace() || "`'\"=(/".contains(it))
            && after.is_some_and(|it| it.is_ascii_lowercase())
    };
    text.match_indices("retroscope ").filter(follows).count()
}

fn commands(path: &Path, text: &str) -> Vec<Documented> {
    let extension = path.extension().and_then(|it| it.to_str()).unwrap_or("");
    let code = match extension {
        "md" => of_markdown(text),
        "json" => Vec::new(),
        "lua" => of_commented(text, "--"),
        "rs" => {
            let product = text.split("\nmod tests {").next();
            spans(&without_markers(product.unwrap_or(text)))
        }
        _ => of_commented(text, "#"),
    };
    code.iter().flat_map(of_code).collect()
}

/// Code of Markdown: blocks, titles (lines that begin with `# `), and code spans.
fn of_markdown(text: &str) -> Vec<Code> {
    let mut code = Vec::new();
    let mut block: Option<(&str, String)> = None;
    let mut prose = String::new();
    for line in text.lines() {
        let fence = line.trim_start().strip_prefix("```");
        if let Some((_, lines)) = block.as_mut().filter(|_| fence.is_none()) {
            lines.push_str(line);
            lines.push('\n');
            continue;
        }
        let Some(language) = fence else {
            match line.strip_prefix("# ") {
                Some(title) => prose.push_str(&format!("`{title}`\n\n")),
                None => prose.push_str(&format!("{line}\n")),
            }
            continue;
        };
        match block.take() {
            Some((language, lines)) => code.extend(of_block(language, &lines)),
            None => block = Some((language, String::new())),
        }
    }
    assert_eq!(block, None, "a block has no end");
    code.extend(spans(&prose.replace("\\|", "|")));
    code
}

fn of_block(language: &str, lines: &str) -> Vec<Code> {
    let whole = |text: String| Code {
        text,
        is_span: false,
    };
    match language {
        "console" => {
            let joined = lines.replace("\\\n", " ");
            let prompted = joined.lines().filter_map(|line| {
                let typed = line.strip_prefix("$ ").or(line.strip_prefix("# "));
                typed.map(|typed| whole(typed.to_owned()))
            });
            prompted.collect()
        }
        "sh" => vec![whole(lines.to_owned())],
        "toml" | "yaml" => of_commented(lines, "#"),
        "lua" => of_commented(lines, "--"),
        // Blocks of output and data.
        _ => Vec::new(),
    }
}

/// Code of a file with comments: its lines, comment lines that are a command, and the code spans of
/// the comments.
fn of_commented(text: &str, marker: &str) -> Vec<Code> {
    let mut code = Vec::new();
    let mut prose = String::new();
    for line in text.lines().map(str::trim) {
        let comment = line.strip_prefix(marker).map(str::trim);
        let command = match comment {
            Some(comment) if comment.starts_with("retroscope ") => Some(comment),
            Some(comment) => {
                prose.push_str(comment);
                None
            }
            None => Some(line),
        };
        prose.push('\n');
        if let Some(command) = command {
            // `ExecStart=` and similar keys.
            let value = command.split_once('=').filter(|(key, _)| {
                let mut letters = key.bytes();
                !key.starts_with("retroscope ")
                    && letters.all(|it| it.is_ascii_alphanumeric() || b"-_ ".contains(&it))
            });
            let text = value.map_or(command, |(_, value)| value.trim());
            code.push(Code {
                text: text.to_owned(),
                is_span: false,
            });
            prose.push('\n');
        }
    }
    code.extend(spans(&prose));
    code
}

/// Rust without the comment markers. An empty line separates code from comments.
fn without_markers(text: &str) -> String {
    let lines = text.lines().map(str::trim_start).map(|line| {
        let comment = line.strip_prefix("//");
        let comment = comment.map(|it| it.trim_start_matches(['/', '!']));
        comment.map_or_else(|| format!("\n{line}\n\n"), |it| format!("{it}\n"))
    });
    lines.collect()
}

/// The code spans of a text. A span ends at the end of its paragraph.
fn spans(text: &str) -> Vec<Code> {
    let spans = text.split("\n\n").flat_map(|paragraph| {
        let odd = paragraph.split('`').skip(1).step_by(2);
        odd.map(|span| Code {
            text: span.replace('\n', " "),
            is_span: true,
        })
    });
    spans.collect()
}

fn of_code(code: &Code) -> Vec<Documented> {
    let mut found = Vec::new();
    for words in simple_commands(&code.text) {
        for inner in words.iter().filter(|word| word.contains("retroscope ")) {
            // A command for another shell: `ssh HOST 'retroscope …'`.
            found.extend(of_code(&Code {
                text: inner.clone(),
                is_span: code.is_span,
            }));
        }
        match arguments(&words) {
            // Only the program's name.
            Some([]) => {}
            Some(arguments) => found.push(Documented {
                words: arguments.to_vec(),
                is_span: code.is_span,
                is_explicit: true,
            }),
            // A code span may omit the program's name: `record --api`, `rules add`.
            None if code.is_span => {
                let first = &words[0];
                let command = CLI.find_subcommand(first);
                let second = words.get(1).map_or("", String::as_str);
                let is_ours = command.is_some_and(|command| {
                    second.starts_with('-') || command.find_subcommand(second).is_some()
                });
                if is_ours {
                    found.push(Documented {
                        words,
                        is_span: true,
                        is_explicit: false,
                    });
                }
            }
            None => {}
        }
    }
    found
}

/// The words after the program's name. `None`: the simple command does not run this program.
fn arguments(words: &[String]) -> Option<&[String]> {
    let is_program = |word: &String| match word.rsplit_once('/') {
        Some((folder, "retroscope")) => PROGRAM_FOLDERS.iter().any(|it| folder.ends_with(it)),
        _ => word == "retroscope",
    };
    let at = words.iter().position(is_program)?;
    // Wrappers, their options and values, and variables may precede `retroscope`. After a program
    // in `CONTAINERS`, any words may precede `retroscope`.
    let is_skipped = |(at, word): (usize, &String)| {
        let is_number = word.parse::<u32>().is_ok();
        let is_value = at > 0 && words[at - 1].starts_with('-');
        let is_wrapper = WRAPPERS.contains(&word.as_str());
        is_wrapper || is_number || is_value || word.starts_with('-') || word.contains('=')
    };
    let is_inside = words
        .first()
        .is_some_and(|it| CONTAINERS.contains(&it.as_str()));
    let mut before = words[..at].iter().enumerate();
    (at == 0 || is_inside || !words[0].starts_with('-') && before.all(is_skipped))
        .then(|| &words[at + 1..])
}

/// Splits code as a shell does, into simple commands without their redirections.
#[derive(Debug, Default)]
struct Splitter {
    commands: Vec<Vec<String>>,
    words: Vec<String>,
    word: Option<String>,
    /// Whether the next word is the file of a redirection.
    is_redirected: bool,
}

impl Splitter {
    fn push(&mut self, letters: impl IntoIterator<Item = char>) {
        self.word.get_or_insert_default().extend(letters);
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        if !mem::take(&mut self.is_redirected) {
            self.words.push(word);
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.is_redirected = false;
        let words = mem::take(&mut self.words);
        if !words.is_empty() {
            self.commands.push(words);
        }
    }

    /// Handles `<` or `>`: drops the number of a descriptor before this letter.
    fn redirect(&mut self) {
        self.word.take_if(|word| word.parse::<u8>().is_ok());
        self.end_word();
        self.is_redirected = true;
    }
}

fn simple_commands(code: &str) -> Vec<Vec<String>> {
    let mut splitter = Splitter::default();
    let mut letters = code.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\'' => splitter.push(letters.by_ref().take_while(|it| *it != '\'')),
            '"' => {
                splitter.push([]);
                while let Some(letter) = letters.next().filter(|it| *it != '"') {
                    let escaped = (letter == '\\').then(|| letters.next());
                    splitter.push(escaped.unwrap_or(Some(letter)));
                }
            }
            '\\' => splitter.push(letters.next().filter(|it| *it != '\n')),
            '#' if splitter.word.is_none() => {
                let _ = letters.by_ref().find(|it| *it == '\n');
                splitter.end_command();
            }
            '<' | '>' => {
                splitter.redirect();
                while letters.next_if(|it| "<>&".contains(*it)).is_some() {}
            }
            '|' | '&' | ';' | '\n' | '(' | ')' => splitter.end_command(),
            ' ' | '\t' => splitter.end_word(),
            letter => splitter.push([letter]),
        }
    }
    splitter.end_command();
    splitter.commands
}

fn parse(command: &Documented) -> Result<(), String> {
    let is_left_out = |word: &&String| ["…", "..."].contains(&word.as_str());
    let mut words = command.words.clone();
    words.retain(|word| !is_left_out(&word));
    // With `record --config`, the file may contain keys that the command line lacks.
    let has_file = words.iter().any(|word| word == "--config");
    let may_lack = command.is_span || has_file || command.words.iter().any(|it| is_left_out(&it));
    if words.first().is_some_and(|word| word == "COMMAND") {
        let names = CLI.get_subcommands().map(|it| it.get_name().to_owned());
        return names.into_iter().try_for_each(|name| {
            words[0] = name;
            parse_words(&words, may_lack)
        });
    }
    parse_words(&words, may_lack).or_else(|why| {
        // A code span may name an option without its value.
        let is_option = words.last().is_some_and(|word| word.starts_with('-'));
        if !(command.is_span && is_option) {
            return Err(why);
        }
        words.push("VALUE".to_owned());
        parse_words(&words, may_lack).map_err(|_| why)
    })
}

fn parse_words(words: &[String], may_lack: bool) -> Result<(), String> {
    let mut open: Vec<String> = Vec::new();
    loop {
        let cli = with_any_value(CLI.clone(), &open);
        let words = words.iter().map(String::as_str);
        let Err(error) = cli.try_get_matches_from(iter::once("retroscope").chain(words)) else {
            return Ok(());
        };
        let context = |kind| error.get(kind).map(ToString::to_string);
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return Ok(()),
            ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                if may_lack =>
            {
                return Ok(());
            }
            _ => {}
        }
        let value = context(ContextKind::InvalidValue).filter(|it| is_placeholder(it));
        let arg = context(ContextKind::InvalidArg).filter(|it| !open.contains(it));
        let (Some(_), Some(arg)) = (value, arg) else {
            let text = error.to_string();
            return Err(text.lines().next().unwrap_or_default().to_owned());
        };
        open.push(arg);
    }
}

/// Makes the arguments with these names accept any value. Names have the form of clap's errors:
/// `--duration <TIME>`. One positional name selects all positional arguments.
fn with_any_value(command: Command, names: &[String]) -> Command {
    let is_named = |arg: &Arg, name: &String| match arg.get_long() {
        Some(long) => name.split([' ', '=', '[']).next() == Some(&format!("--{long}")),
        None => !name.starts_with('-'),
    };
    let command = command.mut_args(|arg| match names.iter().any(|name| is_named(&arg, name)) {
        true => arg.value_parser(ValueParser::os_string()),
        false => arg,
    });
    command.mut_subcommands(|it| with_any_value(it, names))
}

/// Whether a value has a word in capitals.
fn is_placeholder(value: &str) -> bool {
    let mut words = value.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.any(|word| !word.is_empty() && word.bytes().all(|it| it.is_ascii_uppercase()))
}

#[test]
fn a_wrong_command_is_found_wherever_it_is_written() {
    let faults = |name: &str, text: &str| {
        let commands = commands(Path::new(name), text);
        let faults = commands.iter().filter(|command| parse(command).is_err());
        (commands.len(), faults.count())
    };
    for (name, text, expected) in [
        (
            "a.md",
            "see `retroscope ctl reload`, or\n`retroscope\nreload`\n",
            (2, 1),
        ),
        (
            "a.md",
            "`record --cutof 1KiB`, `rules ad`, `rules add`",
            (2, 1),
        ),
        (
            "a.md",
            "# retroscope recrd\n\n`retroscope COMMAND --hepl`",
            (2, 2),
        ),
        (
            "a.md",
            "```console\n$ sudo retroscope status \\\n  --jsn\nretroscope x\n```",
            (1, 1),
        ),
        ("a.md", "```sh\nssh a 'retroscope quer'\n```", (1, 1)),
        // A whole command line must have its required arguments.
        (
            "a.md",
            "```sh\nretroscope token\n```\n`retroscope token`",
            (2, 1),
        ),
        ("a.md", "```sh\nretroscope token …\n```", (1, 0)),
        ("a.md", "```toml\n# `retroscope ctl`\n```", (1, 1)),
        // Values must be valid, except placeholders.
        (
            "a.md",
            "`record --duration 5x`, `record --duration TIME --past x`",
            (2, 2),
        ),
        (
            "a.md",
            "`retroscope record --duration TIME -i IFACE`, `record --past`",
            (2, 0),
        ),
        (
            "a.lua",
            "--   retroscope record -i eth0 --modul m.lua\n",
            (1, 1),
        ),
        (
            "a.toml",
            "a = 1\n# Written by `retroscope\n# tokn`\n",
            (1, 1),
        ),
        (
            "a.service",
            "ExecStart=/usr/bin/retroscope record --confg a\n",
            (1, 1),
        ),
        (
            "postinst",
            "retroscope reload >/dev/null 2>&1 || retroscope relod",
            (2, 1),
        ),
        (
            "a.rs",
            "//! By `retroscope\n//! quer`.\nfail(\"`retroscope sta`\");",
            (2, 2),
        ),
        ("a.md", "`sudo -u a chrt -f 1 retroscope stats`", (1, 1)),
        // Here `retroscope` is an argument of another program, so no command is found.
        (
            "a.md",
            "`tshark -i retroscope -f x`, `sudo usermod -aG retroscope $USER`",
            (0, 0),
        ),
    ] {
        assert_eq!(faults(name, text), expected, "{text}");
    }
    assert_eq!(
        mentions("retroscope ctl\n-i retroscope -f retroscope\tx"),
        1
    );
}
