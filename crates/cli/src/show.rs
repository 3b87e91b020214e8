//! How names, labels and times are written for people, and for programs in JSON.

use crate::{exit, holder};
use lockkeeper_client::Entry;
use lockkeeper_core::{Cause, Name};
use std::{
    borrow::Cow,
    env,
    fmt::Write as _,
    io::{ErrorKind, IsTerminal, Write as _, stdout},
    process,
};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// Says something on standard error, in one write: lines of many processes do not mix.
pub(crate) fn say(words: &str) {
    // The reader may have exited.
    let _ = std::io::stderr().write_all(format!("lockkeeper: {words}\n").as_bytes());
}

/// Writes to standard output. A reader that has seen enough closes the pipe.
pub(crate) fn print(text: &str) {
    match stdout().write_all(text.as_bytes()).and_then(|()| stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            say(&format!("standard output: {error}"));
            process::exit(exit::SOFTWARE.into());
        }
        _ => {}
    }
}

/// Why a lock is lost whose lease was not renewed.
pub(crate) const OUT_OF_REACH: &str = "the lock was lost: the daemon was out of reach for too long";

/// Why a lock was broken, and by which client if that is known.
pub(crate) fn broken(cause: Cause, owner: Option<&str>, forced: bool) -> String {
    let how = match (cause, forced) {
        (Cause::Stolen, false) => "the lock was stolen",
        (Cause::Stolen, true) => "the lock was released by force",
        (Cause::Lost, true) => "the lock was lost: another client ended its session",
        (Cause::Lost, false) => OUT_OF_REACH,
    };
    let by = owner.map(|owner| format!(" by {}", by(owner))).unwrap_or_default();
    format!("{how}{by}")
}

/// Who has stolen or released a lock, from how the daemon describes a client: `ann@build7, pid
/// 4711`. Of another user's process, the daemon knows the user; the name is what that one says.
fn by(owner: &str) -> String {
    let Some(user) = owner.split(' ').find(|word| word.contains('@')) else { return label(owner) };
    let mut words = owner.split(' ').peekable();
    let mut number = |name| words.next_if_eq(&name).and_then(|_| words.next());
    let (pid, uid) = (number("pid"), number("uid"));
    let pid = pid.or_else(|| own_pid(owner));
    let mut shown = label(user);
    for (name, number) in [("uid", uid), ("pid", pid)] {
        shown.extend(number.map(|number| format!(", {name} {}", label(number))));
    }
    shown
}

/// The process id at the end of how a client describes itself, which is that of its machine.
fn own_pid(owner: &str) -> Option<&str> {
    let (_, pid) = owner.rsplit_once('[')?;
    pid.strip_suffix(']').filter(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The notice when the daemon hides the details of other clients.
pub(crate) const HIDDEN: &str = "Others' labels, times and processes are hidden: no right to inspect.";

/// Whether the daemon hides something.
pub(crate) fn hides(entries: &[Entry]) -> bool {
    entries.iter().any(is_hidden)
}

/// Whether it shows of a request only that it is there: a token is never 0.
pub(crate) fn is_hidden(entry: &Entry) -> bool {
    entry.token.unwrap_or(0) == 0 && entry.owner.is_none() && entry.since == 0
}

/// Its token, if it is held and that is not hidden.
pub(crate) fn token(entry: &Entry) -> Option<String> {
    entry.token.filter(|token| *token != 0).map(|token| token.to_string())
}

/// For how long it has been as it is, if that is not hidden.
pub(crate) fn since(entry: &Entry) -> String {
    if is_hidden(entry) { String::new() } else { age(entry.since) }
}

/// A name for a terminal: nothing in it is the terminal's to act upon, and no two names look alike.
/// One with blanks, quotes or anything that must be escaped is quoted; bytes that are not text are
/// `\xff`.
pub(crate) fn name(name: &Name) -> String {
    let bytes = name.as_bytes();
    let mut shown = String::new();
    for chunk in bytes.utf8_chunks() {
        escape(chunk.valid(), &mut shown);
        chunk.invalid().iter().for_each(|byte| _ = write!(shown, "\\x{byte:02x}"));
    }
    let plain =
        shown.as_bytes() == bytes && !shown.is_empty() && !shown.contains([' ', '"', '\u{27}', '\\', ',']);
    if plain { shown } else { format!("\"{}\"", shown.replace('"', "\\\"")) }
}

/// A label for a terminal.
pub(crate) fn label(text: &str) -> String {
    let mut shown = String::new();
    escape(text, &mut shown);
    shown
}

fn escape(text: &str, shown: &mut String) {
    for c in text.chars() {
        match c {
            '"' | '\'' => shown.push(c),
            // Control characters, line ends, and what turns the direction of writing or joins
            // letters out of sight.
            c => shown.extend(c.escape_debug()),
        }
    }
}

pub(crate) use crate::holder::{has_ended, pid};

/// The holder or waiter, as far as known. For a client on the network this includes its process
/// there: the one that requested the lock, even if it has ended, unless the holder is visible on
/// this machine.
pub(crate) fn who(entry: &Entry) -> String {
    let who = match &entry.info {
        Some(info) => label(info),
        None => format!("client {}", label(&entry.client_id)),
    };
    let remote = entry.owner.as_deref().filter(|owner| !owner.starts_with("pid "));
    match remote.and_then(own_pid) {
        Some(pid) => match holder::successor(entry, pid) {
            Some(successor) => format!("{who}, pid {successor}"),
            None => format!("{who}, pid {pid}"),
        },
        None => who + mark(entry),
    }
}

/// Why its process does not run, as far as that is known.
pub(crate) fn mark(entry: &Entry) -> &'static str {
    match entry {
        entry if entry.is_unverifiable() => " (unverifiable)",
        entry if is_stopped(entry) => " (stopped)",
        entry if has_ended(entry) => " (ended)",
        _ => "",
    }
}

/// Whether its process, of this machine, was stopped by a signal: Ctrl-Z, most likely.
pub(crate) fn is_stopped(entry: &Entry) -> bool {
    pid(entry).is_some_and(crate::session::stopped)
}

/// The advice for an unverifiable session.
pub(crate) fn way_out(entry: &Entry) -> Option<String> {
    let end = || format!("If its process is gone: lockkeeper release --client {}", label(&entry.client_id));
    entry.is_unverifiable().then(end)
}

/// The holder of a lock, and its hold time.
pub(crate) fn held_by(entry: &Entry) -> String {
    let held = match pid(entry) {
        _ if is_hidden(entry) => format!("held by {}", who(entry)),
        Some(pid) => format!("held for {} by pid {pid} ({})", age(entry.since), who(entry)),
        None => format!("held for {} by {}", age(entry.since), who(entry)),
    };
    match way_out(entry) {
        Some(way_out) => format!("{held}. {way_out}"),
        None => held,
    }
}

/// So many milliseconds, in the units that `--timeout` takes.
pub(crate) fn age(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    match seconds {
        0..10 => format!("{}.{}s", seconds, milliseconds % 1000 / 100),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86400, seconds / 3600 % 24),
    }
}

/// As many columns of a terminal as the text takes.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// The text with blanks after it, up to so many columns.
pub(crate) fn pad(text: &str, columns: usize) -> String {
    let blanks = columns.saturating_sub(width(text));
    format!("{text}{:blanks$}", "")
}

/// The text cut to a number of columns, with a mark at the cut.
pub(crate) fn fit(text: &str, columns: usize) -> Cow<'_, str> {
    if width(text) <= columns {
        return text.into();
    }
    let Some(mut left) = columns.checked_sub(1) else { return "".into() };
    let mut shown = String::new();
    // A visible character may be several code points: a thumb and its colour.
    for piece in text.graphemes(true) {
        match left.checked_sub(width(piece)) {
            Some(rest) => left = rest,
            None => break,
        }
        shown.push_str(piece);
    }
    shown.push('…');
    shown.into()
}

/// Whether to colour what goes to standard output.
pub(crate) fn colour() -> bool {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    std::io::stdout().is_terminal()
        && set("NO_COLOR").is_none()
        && set("TERM").is_some_and(|term| term != "dumb")
}

/// A JSON object, written field by field.
pub(crate) struct Object(String);

impl Object {
    pub(crate) fn new() -> Self {
        Self("{".into())
    }

    /// A field with a value that is JSON already.
    pub(crate) fn raw(mut self, key: &str, value: impl std::fmt::Display) -> Self {
        let comma = if self.0.len() > 1 { "," } else { "" };
        let _ = write!(self.0, r#"{comma}"{key}":{value}"#);
        self
    }

    pub(crate) fn text(self, key: &str, value: &str) -> Self {
        self.raw(key, string(value.encode_utf16()))
    }

    /// A name as JavaScript has it, lone surrogates too. One that no string spells has its bytes
    /// beside it, in hex.
    pub(crate) fn name(self, name: &Name) -> Self {
        let units = name.to_utf16();
        let object = self.raw("name", string(units.iter().copied()));
        if Name::from_utf16(units) == *name {
            return object;
        }
        let hex: String = name.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        object.text("nameBytes", &hex)
    }

    pub(crate) fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

/// A JSON array of what is JSON already.
pub(crate) fn array(items: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", items.into_iter().collect::<Vec<_>>().join(","))
}

fn string(units: impl IntoIterator<Item = u16>) -> String {
    let mut quoted = String::from('"');
    for unit in char::decode_utf16(units) {
        match unit {
            Ok(c @ ('"' | '\\')) => quoted.extend(['\\', c]),
            Ok(c) if c.is_control() => _ = write!(quoted, "\\u{:04x}", u32::from(c)),
            Ok(c) => quoted.push(c),
            Err(lone) => _ = write!(quoted, "\\u{:04x}", lone.unpaired_surrogate()),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::{Object, age, by, fit, label, name, pad, width};
    use lockkeeper_core::Name;

    #[test]
    fn a_name_is_escaped_and_no_two_look_alike() {
        for (given, shown) in [
            (&b"nightly"[..], "nightly"),
            ("müller/ü".as_bytes(), "müller/ü"),
            (b"", "\"\""),
            (b"a b", "\"a b\""),
            (b"a\"b", "\"a\\\"b\""),
            (b"a\\b", "\"a\\\\b\""),
            (b"\x1b[2J\n", "\"\\u{1b}[2J\\n\""),
            ("\u{202e}abc".as_bytes(), "\"\\u{202e}abc\""),
            ("\u{9b}31m".as_bytes(), "\"\\u{9b}31m\""),
            (b"\xff", "\"\\xff\""),
            (b"\\xff", "\"\\\\xff\""),
        ] {
            assert_eq!(name(&Name::from(given)), shown);
        }
        assert_eq!(label("it's \"a\"\u{7}"), "it's \"a\"\\u{7}");
    }

    #[test]
    fn json_has_every_name() {
        let json = |bytes: &[u8]| Object::new().name(&Name::from(bytes)).end();
        assert_eq!(json(b"a\"\\\n\x7f"), r#"{"name":"a\"\\\u000a\u007f"}"#);
        assert_eq!(json(&[0xED, 0xA0, 0xBD]), r#"{"name":"\ud83d"}"#);
        assert_eq!(json(b"a\xff"), "{\"name\":\"a\u{FFFD}\",\"nameBytes\":\"61ff\"}");
    }

    #[test]
    fn who_did_it_is_a_user_and_a_process() {
        for (owner, shown) in [
            ("pid 71 ann@build7 lockkeeper[71]", "ann@build7, pid 71"),
            ("10.0.0.1 ann@build7 my job[71]", "ann@build7, pid 71"),
            ("pid 71 uid 1001 root@build7 lockkeeper[7]", "root@build7, uid 1001, pid 71"),
            ("uid 1001 root@build7 lockkeeper[7]", "root@build7, uid 1001, pid 7"),
            ("ann@build7", "ann@build7"),
            ("pid 71", "pid 71"),
        ] {
            assert_eq!(by(owner), shown);
        }
    }

    #[test]
    fn times_are_short() {
        for (milliseconds, shown) in [
            (0, "0.0s"),
            (1_599, "1.5s"),
            (59_999, "59s"),
            (192_000, "3m12s"),
            (18_120_000, "5h02m"),
            (273_600_000, "3d04h"),
        ] {
            assert_eq!(age(milliseconds), shown);
        }
    }

    #[test]
    fn what_does_not_fit_is_cut_between_characters() {
        assert_eq!(fit("abc", 3), "abc");
        assert_eq!(fit("abcd", 3), "ab…");
        assert_eq!((fit("水水水", 4), width("水水水")), ("水…".into(), 6));
        assert_eq!((fit("👍🏽👍🏽👍🏽", 5), width("👍🏽👍🏽👍🏽")), ("👍🏽👍🏽…".into(), 6));
        assert_eq!((pad("水", 4), pad("abc", 2)), ("水  ".into(), "abc".into()));
        assert_eq!((fit("abc", 1), fit("abc", 0)), ("…".into(), "".into()));
    }
}
