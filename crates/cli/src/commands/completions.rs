//! `retroscope completions SHELL` and `retroscope man DIR`: generate shell completions and man
//! pages from clap's definitions.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{
    Command,
    builder::{Resettable, StyledStr},
};
use clap_complete::{Shell, generate};
use clap_mangen::{
    Man,
    roff::{Roff, roman},
};

use crate::failure::{Failure, put};

/// Directory of the documentation in the installed package. Help texts name a page by its path in
/// the source tree, `docs/…`; man pages get this directory instead of `docs/`.
const DOCS: &str = "/usr/share/doc/retroscope/docs/";

/// Print a completion script for a shell
///
/// bash: `retroscope completions bash > /etc/bash_completion.d/retroscope`; zsh: write the file
/// `_retroscope` in a directory of $fpath; fish:
/// ~/.config/fish/completions/retroscope.fish.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionArgs {
    /// Print the script for this shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// Write man pages: retroscope.1, and one for each command
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Write to this directory, like /usr/local/share/man/man1. Create a missing directory,
    /// overwrite existing pages
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// The completion script of `program` for a shell.
fn completion(shell: Shell, mut program: Command) -> Vec<u8> {
    let mut script = Vec::new();
    let name = program.get_name().to_owned();
    generate(shell, &mut program, name, &mut script);
    script
}

/// Runs `completions`.
pub(crate) fn completions(args: &CompletionArgs, program: Command) -> Result<ExitCode, Failure> {
    let script = completion(args.shell, program);
    put(&String::from_utf8_lossy(&script))
}

/// Writes the man page of a command and the pages of its subcommands that are not hidden.
fn write_pages(command: Command, directory: &Path) -> io::Result<()> {
    let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
    shown
        .cloned()
        .try_for_each(|inner| write_pages(inner, directory))?;
    let after = command.get_after_help().map(ToString::to_string);
    let page = Man::new(command.after_help(Resettable::<StyledStr>::Reset));
    let mut text = Vec::new();
    page.render(&mut text)?;
    last_sections(&after.unwrap_or_default()).to_writer(&mut text)?;
    let text = String::from_utf8_lossy(&text).replace("docs/", DOCS);
    fs::write(directory.join(page.get_filename()), text)
}

/// Makes a section of each paragraph of the help after the options: exit codes, examples, notes.
/// `clap_mangen` itself would put all these paragraphs into one section `EXTRA`.
fn last_sections(after: &str) -> Roff {
    let mut page = Roff::new();
    for paragraph in after.split("\n\n").filter(|it| !it.is_empty()) {
        if let Some(codes) = paragraph.strip_prefix("Exit codes: ") {
            page.control("SH", ["EXIT STATUS"]).text([roman(codes)]);
        } else if paragraph.contains("\n  retroscope ") {
            page.control("SH", ["EXAMPLES"]).control("nf", []);
            let lines = paragraph.strip_prefix("Examples:\n").unwrap_or(paragraph);
            for line in lines.lines() {
                page.text([roman(line)]);
            }
            page.control("fi", []);
        } else {
            page.control("SH", ["NOTES"]).text([roman(paragraph)]);
        }
    }
    page
}

/// Runs `man`.
pub(crate) fn man(args: &ManArgs, program: Command) -> Result<ExitCode, Failure> {
    let directory = &args.directory;
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let written = fs::create_dir_all(directory).and_then(|()| write_pages(program, directory));
    written.map_err(|error| {
        let directory = directory.display();
        Failure::failed(format!("cannot write man pages to {directory}: {error}"))
    })?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::process::Command as Process;

    use clap::{CommandFactory as _, ValueEnum as _};

    use super::*;
    use crate::Cli;

    /// All commands that are not hidden, each with the names of the program and of the subcommands
    /// that lead to the command.
    fn commands(program: &Command) -> Vec<(Vec<String>, Command)> {
        let mut all = vec![(vec![program.get_name().to_owned()], program.clone())];
        for inner in program.get_subcommands().filter(|it| !it.is_hide_set()) {
            for (mut words, command) in commands(inner) {
                words.insert(0, program.get_name().to_owned());
                all.push((words, command));
            }
        }
        all
    }

    /// Long names of the options that `--help` shows.
    fn options(command: &Command) -> Vec<&str> {
        let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
        shown.filter_map(|arg| arg.get_long()).collect()
    }

    #[test]
    fn every_shell_completes_every_option() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(completion(*shell, Cli::command())).unwrap();
            for (words, command) in commands(&Cli::command()) {
                for option in options(&command) {
                    // The fish script declares the option --NAME as `-l NAME`.
                    let forms = [format!("--{option}"), format!("-l {option}")];
                    assert!(
                        forms.iter().any(|form| script.contains(form)),
                        "{shell}: {words:?} --{option}"
                    );
                }
            }
        }
    }

    #[test]
    fn bash_takes_its_script() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("c");
        fs::write(&script, completion(Shell::Bash, Cli::command())).unwrap();
        // The completions of `retroscope record --hist`.
        let ask = format!(
            "source {} && COMP_WORDS=(retroscope record --hist) COMP_CWORD=2 && _retroscope retroscope --hist record && echo ${{COMPREPLY[@]}}",
            script.display()
        );
        let output = Process::new("bash").args(["-c", &ask]).output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "--history-goal\n",
            "{output:?}"
        );
    }

    #[test]
    fn man_pages_tell_every_option() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("man1");
        let args = ManArgs {
            directory: directory.clone(),
        };
        man(&args, Cli::command()).unwrap();
        let all = commands(&Cli::command());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), all.len());
        for (words, command) in all {
            let page = directory.join(words.join("-") + ".1");
            let page = fs::read_to_string(&page).unwrap();
            // The page has `\-`, roff's minus sign, instead of `-`.
            let page = page.replace("\\-", "-");
            for option in options(&command) {
                assert!(
                    page.contains(&format!("--{option}")),
                    "{words:?} --{option}"
                );
            }
            assert!(page.contains(".SH SYNOPSIS"), "{words:?}");
            assert!(!page.contains(".SH EXTRA"), "{words:?}");
            let has_codes = command.get_after_help().is_some();
            assert_eq!(page.contains(".SH \"EXIT STATUS\""), has_codes, "{words:?}");
            if ["record", "query", "extcap"].contains(&command.get_name()) {
                assert!(page.contains(".SH EXAMPLES\n.nf\n"), "{words:?}");
            }
            let names = page.matches("docs/").count();
            assert_eq!(names, page.matches(DOCS).count(), "{words:?}");
        }
    }
}
