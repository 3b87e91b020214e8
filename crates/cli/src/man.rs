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

/// The sections of a page after its options.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extra {
    None,
    /// The next line begins a section.
    Begun,
    /// Lines as they are typed.
    Typed,
    Text,
}

/// Puts examples, statuses and notes into separate sections, and `--` before a command. The lines
/// of the first two stay as they are.
fn as_typed(page: &str) -> String {
    let mut shown = String::new();
    let mut extra = Extra::None;
    for line in page.lines() {
        if line == ".SH EXTRA" {
            extra = Extra::Begun;
            continue;
        }
        let text = |heading| (Some(heading), Extra::Text);
        let (heading, next) = match line {
            _ if line.starts_with(".SH") => (None, Extra::None),
            _ if extra == Extra::None => (None, extra),
            "Examples:" | "Example:" => (Some("EXAMPLES"), Extra::Typed),
            "Exit status:" => (Some("EXIT STATUS"), Extra::Typed),
            _ if line.starts_with("Exit status: ") => text("EXIT STATUS"),
            // Lines before the examples, or after them or the statuses, are text.
            _ if extra == Extra::Begun => text("NOTES"),
            _ if extra == Extra::Typed && shown.ends_with("\n\n") && !line.starts_with(' ') => text("NOTES"),
            _ => (None, extra),
        };
        if extra == Extra::Typed && (next != Extra::Typed || heading.is_some()) {
            shown.push_str(".fi\n");
        }
        extra = next;
        if let Some(heading) = heading {
            shown.push_str(&format!(".SH {heading}\n"));
        }
        if heading.is_none() || extra == Extra::Text {
            shown.push_str(line.strip_prefix("Exit status: ").unwrap_or(line));
            shown.push('\n');
        } else {
            shown.push_str(".nf\n");
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
        let expected = ".SH SYNOPSIS\nrun <\\fINAME\\fR> \\-\\- [\\fICOMMAND\\fR]\n.SH EXAMPLES\n.nf\n  a   b\n\n.fi\n.SH EXIT STATUS\n.nf\n  64  c\n\n.fi\n.SH NOTES\nMore.\n.SH VERSION\nv1\n";
        assert_eq!(as_typed(page), expected);
    }

    /// It was taken for the description of the last option.
    #[test]
    fn text_without_examples_has_a_section_too() {
        let page =
            ".TP\nPrint help\n.SH EXTRA\nEvery flag\nis one.\n\nExit status: 0 if so.\n.SH VERSION\nv1\n";
        let expected =
            ".TP\nPrint help\n.SH NOTES\nEvery flag\nis one.\n\n.SH EXIT STATUS\n0 if so.\n.SH VERSION\nv1\n";
        assert_eq!(as_typed(page), expected);
    }
}
