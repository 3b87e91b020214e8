//! Puts on record who stole, released by force, ended a session, or was refused something: lines of
//! the log with the target `audit`. Names and owners are as clients gave them, with everything
//! escaped that a terminal would obey, and cut: a line is short, whatever they gave.

use lockkeeper_service::{Audit, Audited, Server};
use std::time::{Duration, Instant};

/// So many refusals are on record in such a time; of the others, only their number.
const REFUSALS: u32 = 20;
const WINDOW: Duration = Duration::from_secs(1);

/// Characters of a text that are on record, and bytes of the names of a steal, but for the last.
const TEXT: usize = 1000;
const NAMES: usize = 16 << 10;

pub(crate) struct Record {
    window: Instant,
    refusals: u32,
}

impl Record {
    pub(crate) fn new() -> Self {
        Self { window: Instant::now(), refusals: 0 }
    }

    /// Takes down what there is.
    pub(crate) fn take(&mut self, server: &mut Server) {
        while let Some(Audit { session, what }) = server.next_audit() {
            let view = server.state().session(session);
            let (by, bucket) = view.map_or(("", ""), |view| (view.owner, view.bucket));
            let (by, client) = (shown(by), format!("{session:016x}"));
            match what {
                Audited::Stole { names, broken } => {
                    let (count, mut bytes) = (names.len(), 0);
                    let fits = |name: &String| {
                        bytes += name.len();
                        bytes - name.len() < NAMES
                    };
                    let names: Vec<_> = names.iter().map(|name| cut(name)).take_while(fits).collect();
                    tracing::info!(target: "audit", by, client, bucket, ?names, count, broken, "stole");
                }
                Audited::Forced { name, broken } => {
                    let name = cut(&name);
                    tracing::info!(target: "audit", by, client, bucket, ?name, broken, "released by force");
                }
                Audited::Ended { target } => {
                    let ended = format!("{target:016x}");
                    tracing::info!(target: "audit", by, client, bucket, ended, "ended a session");
                }
                Audited::Refused { code, why } => {
                    if self.admits() {
                        let why = shown(&why);
                        tracing::info!(target: "audit", by, client, bucket, code, why, "refused");
                    }
                }
            }
        }
    }

    /// Whether one more refusal is put on record.
    pub(crate) fn admits(&mut self) -> bool {
        if self.window.elapsed() >= WINDOW {
            let more = self.refusals.saturating_sub(REFUSALS);
            if more > 0 {
                tracing::info!(target: "audit", more, "refused");
            }
            (self.window, self.refusals) = (Instant::now(), 0);
        }
        self.refusals += 1;
        self.refusals <= REFUSALS
    }
}

/// A text of a client's or stranger's, as it may stand in a line. The log's own formats leave some
/// control characters as they are.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars().take(TEXT) {
        match c {
            '"' | '\'' => shown.push(c),
            c => shown.extend(c.escape_debug()),
        }
    }
    if text.chars().nth(TEXT).is_some() {
        shown.push('…');
    }
    shown
}

/// A name, cut. It is escaped as it is written.
fn cut(name: &[u8]) -> String {
    let (start, rest) = name.split_at(name.len().min(TEXT));
    let more = if rest.is_empty() { "" } else { "…" };
    String::from_utf8_lossy(start).into_owned() + more
}

#[cfg(test)]
mod tests {
    use super::{TEXT, cut, shown};

    /// JSON leaves C1 control characters as they are, which some terminals obey.
    #[test]
    fn nothing_on_record_is_a_terminals_to_obey_or_long() {
        assert_eq!(shown("alice 127.0.0.1 \"o'hara\" grün"), "alice 127.0.0.1 \"o'hara\" grün");
        assert_eq!(shown("a\n\u{1b}[2J\u{9b}2J\u{202e}\u{7f}"), r"a\n\u{1b}[2J\u{9b}2J\u{202e}\u{7f}");
        // Nobody can write what stands for another text.
        assert_eq!(shown(r"a\n"), r"a\\n");
        let long = "\0".repeat(1 << 20);
        assert!(shown(&long).len() < 5 * TEXT && shown(&long).ends_with('…'));
        assert!(cut(long.as_bytes()).len() < TEXT + 10 && cut(b"short") == "short");
    }
}
