//! The `retroscope` program. The modules of `commands` implement the commands.

mod commands;
#[cfg(test)]
mod documented_tests;
mod eve;
mod failure;
mod memory;
mod numa;
mod privileges;
#[cfg(test)]
mod reference_tests;
mod system_file;
mod terminal;
mod units;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// An oscilloscope for network traffic: records every packet into memory and writes what happened
/// before and after a trigger to a capture file.
#[derive(Debug, Parser)]
#[command(name = "retroscope", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Record(Box<commands::record::Args>),
    Flows(Box<commands::flows::Args>),
    Filter(commands::filter::Args),
    Doctor(commands::doctor::Args),
    Generate(commands::generate::Args),
    Status(commands::status::Args),
    Query(Box<commands::query::Args>),
    Extcap(Box<commands::extcap::Args>),
    Trigger(commands::trigger::Args),
    Rules(commands::rules::Args),
    Dumps(commands::dumps::Args),
    Open(commands::open::Args),
    Pin(commands::pin::Args),
    Unpin(commands::pin::UnpinArgs),
    Events(commands::control::EventsArgs),
    WhenFull(commands::control::WhenFullArgs),
    Reload(commands::control::ReloadArgs),
    Stop(commands::control::StopArgs),
    Token(commands::token::Args),
    Dev(commands::dev::Args),
    #[command(hide = true)]
    Sandbox(commands::sandbox::Args),
    Completions(commands::completions::CompletionArgs),
    Man(commands::completions::ManArgs),
}

fn main() -> ExitCode {
    let arguments = commands::extcap::arguments(std::env::args_os());
    let command = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli.command,
        Err(error) => {
            let code = failure::arguments(&error);
            commands::extcap::refused(&arguments);
            return code;
        }
    };
    let result = match command {
        Command::Record(args) => commands::record::run(*args),
        Command::Flows(args) => commands::flows::run(&args),
        Command::Filter(args) => commands::filter::run(args),
        Command::Doctor(args) => commands::doctor::run(args),
        Command::Generate(args) => commands::generate::run(args),
        Command::Status(args) => commands::status::run(&args),
        Command::Query(args) => commands::query::run(&args),
        Command::Extcap(args) => commands::extcap::run(*args),
        Command::Trigger(args) => commands::trigger::run(&args),
        Command::Rules(args) => commands::rules::run(args),
        Command::Dumps(args) => commands::dumps::run(args),
        Command::Open(args) => commands::open::run(&args),
        Command::Pin(args) => commands::pin::run(&args),
        Command::Unpin(args) => commands::pin::unpin(&args),
        Command::Events(args) => commands::control::events(&args),
        Command::WhenFull(args) => commands::control::when_full(&args),
        Command::Reload(args) => commands::control::reload(&args),
        Command::Stop(args) => commands::control::stop(&args),
        Command::Token(args) => commands::token::run(&args),
        Command::Dev(args) => commands::dev::run(&args),
        Command::Sandbox(args) => commands::sandbox::run(&args),
        Command::Completions(args) => commands::completions::completions(&args, Cli::command()),
        Command::Man(args) => commands::completions::man(&args, Cli::command()),
    };
    result.unwrap_or_else(|failure| failure.report())
}
