//! `lockkeeper query`.

use crate::{Done, args, args::Query, exit};
use lockkeeper_client::Entry;
use std::{fmt::Write as _, process::ExitCode};

pub(crate) fn query(args: Query) -> Done {
    let session = args::session()?;
    let name = args.name.as_ref().map(args::name);
    let entries = session.query(name.as_ref()).map_err(|error| (exit::UNAVAILABLE, error.to_string()))?;
    print!("{}", if args.json { json(&entries) } else { table(&entries) });
    Ok(ExitCode::SUCCESS)
}

/// `{"held":[…],"pending":[…]}`. Tokens are strings: they may be beyond what a JSON reader takes for a number.
fn json(entries: &[Entry]) -> String {
    let list = |held: bool| {
        let entries = entries.iter().filter(|entry| entry.token.is_some() == held);
        let objects = entries.map(|entry| {
            let mut object = format!(
                r#"{{"name":{},"mode":"{}","clientId":{}"#,
                quote(&entry.name.to_string_lossy()),
                entry.mode,
                quote(&entry.client_id)
            );
            if let Some(token) = entry.token {
                let _ = write!(object, r#","token":"{token}""#);
            }
            if let Some(info) = &entry.info {
                let _ = write!(object, r#","info":{}"#, quote(info));
            }
            let _ = write!(object, r#","since":{}}}"#, entry.since);
            object
        });
        objects.collect::<Vec<_>>().join(",")
    };
    format!("{{\"held\":[{}],\"pending\":[{}]}}\n", list(true), list(false))
}

/// A JSON string.
fn quote(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\u{0}'..='\u{1f}' => _ = write!(quoted, "\\u{:04x}", u32::from(c)),
            _ => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn table(entries: &[Entry]) -> String {
    if entries.is_empty() {
        return "Nobody holds a lock, and nobody waits.\n".into();
    }
    let heads = ["STATE", "NAME", "MODE", "FOR", "CLIENT", "TOKEN", "INFO"].map(String::from);
    let rows: Vec<[String; 7]> = entries.iter().map(row).collect();
    let width = |column: usize| {
        let cells = rows.iter().chain([&heads]).map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: [usize; 7] = std::array::from_fn(width);
    let mut text = String::new();
    for row in [&heads].into_iter().chain(&rows) {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn row(entry: &Entry) -> [String; 7] {
    let state = if entry.token.is_some() { "held" } else { "waits" };
    // What a name may hold is not for a terminal to act upon.
    let plain =
        |text: &str| text.chars().map(|c| if c.is_control() { '\u{FFFD}' } else { c }).collect::<String>();
    [
        state.into(),
        plain(&entry.name.to_string_lossy()),
        entry.mode.to_string(),
        format!("{:.1} s", std::time::Duration::from_millis(entry.since).as_secs_f64()),
        entry.client_id.clone(),
        entry.token.map(|token| token.to_string()).unwrap_or_default(),
        plain(entry.info.as_deref().unwrap_or_default()),
    ]
}

#[cfg(test)]
mod tests {
    use super::{json, quote, table};
    use lockkeeper_client::Entry;
    use lockkeeper_core::{Mode, Name};

    fn entries() -> [Entry; 2] {
        let held = Entry {
            name: Name::from("a \"b\"\u{1b}"),
            mode: Mode::Exclusive,
            client_id: "c0".into(),
            ticket: 1,
            token: Some(1 << 60),
            info: Some("nightly".into()),
            since: 1500,
            nested_in: None,
            stole: false,
            pid: None,
        };
        let waits =
            Entry { mode: Mode::Shared, token: None, info: None, client_id: "c1".into(), ..held.clone() };
        [held, waits]
    }

    #[test]
    fn json_is_one_line_of_held_and_pending() {
        let expected = concat!(
            r#"{"held":[{"name":"a \"b\"\u001b","mode":"exclusive","clientId":"c0","token":"1152921504606846976","#,
            r#""info":"nightly","since":1500}],"pending":[{"name":"a \"b\"\u001b","mode":"shared","clientId":"c1","#,
            r#""since":1500}]}"#,
            "\n"
        );
        assert_eq!(json(&entries()), expected);
        assert_eq!(json(&[]), "{\"held\":[],\"pending\":[]}\n");
        assert_eq!(quote("\\\n"), r#""\\\u000a""#);
    }

    #[test]
    fn a_table_has_no_control_characters() {
        let shown = table(&entries());
        assert!(shown.starts_with("STATE  NAME"), "{shown}");
        assert!(shown.contains("1.5 s") && !shown.contains('\u{1b}'), "{shown}");
        assert!(table(&[]).starts_with("Nobody"));
    }
}
