//! `lockkeeper completions`, and `lockkeeper names`, which the scripts it prints ask for the names
//! of locks.

use crate::{Done, args::Args, session, show};
use clap::CommandFactory;
use clap_complete::Shell;
use std::{collections::BTreeSet, process::ExitCode};

/// Prints the script of a shell.
pub(crate) fn completions(shell: Shell) -> Done {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "lockkeeper", &mut script);
    // Parts that the generator does not produce.
    match shell {
        Shell::Bash => script.extend(include_bytes!("complete.bash")),
        Shell::Fish => script.extend(include_bytes!("complete.fish")),
        Shell::Zsh => script = with_names(&String::from_utf8_lossy(&script)).into_bytes(),
        _ => {}
    }
    show::print(&String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}

/// The script for zsh, with names where it would take files, and the command's own completion after
/// `--`.
fn with_names(script: &str) -> String {
    let is_name = |line: &str| line.starts_with("'*::names -- ") || line.starts_with("'::name -- ");
    let lines = script.split_inclusive('\n').map(|line| match line {
        "_lockkeeper() {\n" => {
            format!("{}{line}    _lockkeeper_command && return\n", include_str!("complete.zsh"))
        }
        line if is_name(line) => line.replace(":_default' ", ":_lockkeeper_names' "),
        line => line.into(),
    });
    lines.collect()
}

/// Prints the names that can be typed as they are, one in a line. Starts no daemon.
pub(crate) fn names() -> Done {
    let session = session::open_running(&session::endpoint()?).map_err(session::failed)?;
    let entries = session::ask(&session, |session, then| session.query_then(None, then))?.entries;
    let names: BTreeSet<String> = entries.iter().map(|entry| show::name(&entry.name)).collect();
    names.iter().filter(|name| !name.starts_with('"')).for_each(|name| println!("{name}"));
    Ok(ExitCode::SUCCESS)
}
