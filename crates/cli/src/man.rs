//! `lockkeeper man`: the manual pages, with examples and statuses as they are typed.

use crate::{Done, args::Args, exit};
use clap::CommandFactory;
use std::{fs, io, path::Path, process::ExitCode};

/// Writes a page for each command.
pub(crate) fn man(directory: &Path) -> Done {
    let failed = |error: io::Error| (exit::SOFTWARE, format!("{}: {error}", directory.display()));
    clap_mangen::generate_to(Args::command(), directory).map_err(failed)?;
    let pages = fs::read_dir(directory).map_err(failed)?.flatten().map(|page| page.path());
    let ours = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("lockkeeper") && name.ends_with(".1")
    };
    for path in pages.filter(|path| ours(path)) {
        let page = fs::read_to_string(&path).map_err(failed)?;
        fs::write(&path, as_typed(&page)).map_err(failed)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Gives examples and statuses sections of their own, whose lines stay as they are, and puts `--` before a command.
fn as_typed(page: &str) -> String {
    let mut shown = String::new();
    let mut typed = false;
    for line in page.lines() {
        let section = match line {
            ".SH EXTRA" => {
                typed = true;
                continue;
            }
            "Examples:" | "Example:" if typed => Some("EXAMPLES"),
            "Exit status:" if typed => Some("EXIT STATUS"),
            _ => None,
        };
        if line.starts_with(".SH") && typed {
            typed = false;
            shown.push_str(".fi\n");
        }
        match section {
            Some(name) => shown.push_str(&format!(".fi\n.SH {name}\n.nf\n")),
            // What is said after the statuses is text again.
            None if typed && line.starts_with(|c: char| c.is_alphabetic()) && shown.ends_with("\n\n") => {
                shown.push_str(&format!(".fi\n.SH NOTES\n{line}\n"));
                typed = false;
            }
            None => {
                shown.push_str(line);
                shown.push('\n');
            }
        }
    }
    shown.replace(" [\\fICOMMAND\\fR]", " \\-\\- [\\fICOMMAND\\fR]")
}

#[cfg(test)]
mod tests {
    use super::as_typed;

    #[test]
    fn examples_and_statuses_stay_as_they_are() {
        let page = ".SH SYNOPSIS\nrun <\\fINAME\\fR> [\\fICOMMAND\\fR]\n.SH EXTRA\nExamples:\n  a   b\n\nExit status:\n  64  c\n\nMore.\n.SH VERSION\nv1\n";
        let expected = ".SH SYNOPSIS\nrun <\\fINAME\\fR> \\-\\- [\\fICOMMAND\\fR]\n.fi\n.SH EXAMPLES\n.nf\n  a   b\n\n.fi\n.SH EXIT STATUS\n.nf\n  64  c\n\n.fi\n.SH NOTES\nMore.\n.SH VERSION\nv1\n";
        assert_eq!(as_typed(page), expected);
    }
}
