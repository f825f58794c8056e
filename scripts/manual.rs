//! Writes a man page of each command, and what shells complete of them, into a folder:
//! `cargo run --example manual -- FOLDER`. For scripts/package.

use std::{env, fs, io, path::Path};

use clap::{Command, builder::Resettable::Reset};
use clap_complete::{
    generate_to,
    shells::{Bash, Fish, Zsh},
};
use clap_mangen::Man;
use g2g::command::Cli;
use roff::{Roff, roman};

fn main() -> io::Result<()> {
    let folder = env::args_os().nth(1).ok_or(io::ErrorKind::InvalidInput)?;
    let [pages, completions] =
        ["man/man1", "completions"].map(|name| Path::new(&folder).join(name));
    fs::create_dir_all(&pages)?;
    fs::create_dir_all(&completions)?;
    let mut command = listed(&Cli::shown(false)).version(env!("CARGO_PKG_VERSION"));
    generate_to(Bash, &mut command, "g2g", &completions)?;
    generate_to(Fish, &mut command, "g2g", &completions)?;
    generate_to(Zsh, &mut command, "g2g", &completions)?;
    let mut command = Cli::shown(false).disable_help_subcommand(true);
    command.build();
    write_page(&command, &pages)?;
    let mut shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.try_for_each(|command| write_page(command, &pages))
}

/// The commands and flags that `command` shows. clap_complete offers what is hidden too, which are
/// the flags that a command refuses. A line is completed before flags conflict.
fn listed(command: &Command) -> Command {
    let flags = command.get_arguments().filter(|flag| !flag.is_hide_set()).cloned();
    let flags = flags.map(|flag| flag.conflicts_with(Reset).requires(Reset).overrides_with(Reset));
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
    let about = command.get_about().cloned().unwrap_or_default();
    Command::new(&*command.get_name().to_owned().leak())
        .about(about)
        .args(flags)
        .subcommands(commands.map(listed))
}

/// Writes the man page of `command`; with its examples last, where man pages have them.
fn write_page(command: &Command, folder: &Path) -> io::Result<()> {
    let man = Man::new(command.clone()).source(concat!("g2g ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render(&mut page)?;
    if let Some(examples) = command.get_before_long_help() {
        let examples = examples.to_string();
        let mut section = Roff::new();
        section.control("SH", ["EXAMPLES"]).control("nf", []);
        // The first line is the heading.
        for line in examples.lines().skip(1) {
            section.text([roman(line)]);
        }
        section.control("fi", []).to_writer(&mut page)?;
    }
    fs::write(folder.join(man.get_filename()), page)
}
