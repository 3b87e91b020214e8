//! `lockkeeper query` and `lockkeeper inspect`: holders and waiters.

use crate::{
    Done, args,
    args::Query,
    session,
    show::{self, Object},
    table::{Paint, Table, painted_if},
};
use lockkeeper_client::{Deadlock, Entry, Snapshot, Step};
use lockkeeper_core::{Mode, Name};
use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    io::{IsTerminal, stdout},
    process::ExitCode,
};

pub(crate) fn query(args: Query) -> Done {
    let session = session::open()?;
    let name = args.name.as_deref().map(args::name);
    let entries = session::ask(&session, |session, then| session.query_then(name.as_ref(), then))?.entries;
    if show::hides(&entries) {
        show::say(show::HIDDEN);
    }
    print(&args, || query_json(&entries), || query_table(&entries, name.as_ref()))
}

pub(crate) fn inspect(args: Query) -> Done {
    let session = session::open()?;
    let mut snapshot = session::ask(&session, |session, then| session.inspect_then(None, then))?;
    if show::hides(&snapshot.entries) {
        show::say(show::HIDDEN);
    }
    let name = args.name.as_deref().map(args::name);
    if let Some(name) = &name {
        only(&mut snapshot, name);
    }
    print(&args, || inspect_json(&snapshot), || inspect_table(&snapshot, name.as_ref()))
}

/// Leaves the requests that ask for the name, with all their names, and the cycles that they are
/// in.
fn only(snapshot: &mut Snapshot, name: &Name) {
    let asking = snapshot.entries.iter().filter(|entry| entry.name == *name);
    let asking: HashSet<u64> = asking.map(|entry| entry.arrival).collect();
    snapshot.entries.retain(|entry| asking.contains(&entry.arrival));
    snapshot.deadlocks.retain(|deadlock| deadlock.cycle.iter().any(|step| asking.contains(&step.arrival)));
}

/// A table for people, JSON for programs.
fn print(args: &Query, json: impl FnOnce() -> String, table: impl FnOnce() -> String) -> Done {
    let people = args.table || (!args.json && stdout().is_terminal());
    let text = if people { table() } else { json() };
    show::print(&text);
    Ok(ExitCode::SUCCESS)
}

fn query_json(entries: &[Entry]) -> String {
    let json = |entry: &&Entry| about(place(entry), entry).end();
    lists(entries.iter().collect(), |entry| entry.token.is_some(), json).end() + "\n"
}

fn inspect_json(snapshot: &Snapshot) -> String {
    let json = |request: &&[Entry]| {
        let first = &request[0];
        let scope = show::array(request.iter().map(|entry| place(entry).end()));
        let object = Object::new().text("request", &first.arrival.to_string()).raw("scope", scope);
        let mut object = about(object, first);
        if let Some(outer) = first.nested_in {
            object = object.text("nestedIn", &outer.to_string());
        }
        object.raw("stole", first.stole).end()
    };
    let step = |step: &Step| {
        let object = Object::new().text("request", &step.arrival.to_string());
        match &step.waits_for {
            Some(name) => object.raw("waitsFor", Object::new().name(name).end()).end(),
            None => object.end(),
        }
    };
    let deadlock =
        |found: &Deadlock| Object::new().raw("cycle", show::array(found.cycle.iter().map(step))).end();
    let deadlocks = show::array(snapshot.deadlocks.iter().map(deadlock));
    let object = lists(requests(&snapshot.entries).collect(), |request| request[0].token.is_some(), json);
    object.raw("deadlocks", deadlocks).end() + "\n"
}

/// `{"held":[…],"pending":[…]`.
fn lists<T>(all: Vec<T>, held: impl Fn(&T) -> bool, json: impl Fn(&T) -> String) -> Object {
    let list = |wanted| show::array(all.iter().filter(|item| held(item) == wanted).map(&json));
    Object::new().raw("held", list(true)).raw("pending", list(false))
}

fn place(entry: &Entry) -> Object {
    Object::new().name(&entry.name).text("mode", &entry.mode.to_string())
}

/// The members of a request. Tokens are strings, because they may exceed the numbers of a JSON
/// reader.
fn about(object: Object, entry: &Entry) -> Object {
    let mut object = object.text("clientId", &entry.client_id);
    if let Some(token) = show::token(entry) {
        object = object.text("token", &token);
    }
    if let Some(info) = &entry.info {
        object = object.text("info", info);
    }
    if let Some(pid) = show::pid(entry) {
        object = object.raw("pid", pid);
    }
    if let Some(owner) = &entry.owner {
        object = object.text("owner", owner);
    }
    if show::is_stopped(entry) {
        object = object.raw("stopped", true);
    }
    if show::has_ended(entry) {
        object = object.raw("ended", true);
    }
    if entry.is_unverifiable() {
        object = object.raw("unverifiable", true);
    }
    if show::is_hidden(entry) { object } else { object.raw("since", entry.since) }
}

fn query_table(entries: &[Entry], name: Option<&Name>) -> String {
    if entries.is_empty() {
        return nobody(name);
    }
    let mut table = Table::new(["STATE", "NAME", "MODE", "FOR", "PID", "WHO"]);
    for entry in entries {
        let (paint, state) = state(entry);
        let cells = [state, &show::name(&entry.name), &entry.mode.to_string(), &show::since(entry)];
        let [state, name, mode, since] = cells.map(String::from);
        table.row(paint, [state, name, mode, since, pid(entry), show::who(entry)]);
    }
    let mut text = table.text();
    ways_out(entries, &mut text);
    text
}

fn nobody(name: Option<&Name>) -> String {
    match name {
        Some(name) => format!("Nobody holds {}, and nobody waits for it.\n", show::name(name)),
        None => "Nobody holds a lock, and nobody waits.\n".into(),
    }
}

fn inspect_table(snapshot: &Snapshot, name: Option<&Name>) -> String {
    if snapshot.entries.is_empty() {
        return nobody(name);
    }
    let mut table = Table::new(["STATE", "FOR", "PID", "TOKEN", "REQUEST", "CLIENT", "NAMES", "WHO"]);
    let in_cycles: HashSet<u64> =
        snapshot.deadlocks.iter().flat_map(|deadlock| &deadlock.cycle).map(|step| step.arrival).collect();
    for request in requests(&snapshot.entries) {
        let first = &request[0];
        let (paint, state) = match state(first) {
            (_, "waiting") if in_cycles.contains(&first.arrival) => (Paint::Red, "deadlock"),
            state => state,
        };
        let names: Vec<String> = request.iter().map(name_and_mode).collect();
        let mut number = first.arrival.to_string();
        if let Some(outer) = first.nested_in {
            let _ = write!(number, " in {outer}");
        }
        if first.stole {
            number.push_str(" (stole)");
        }
        let token = show::token(first).unwrap_or_default();
        let client = show::label(&first.client_id);
        let since = show::since(first);
        let info = show::label(first.info.as_deref().unwrap_or_default()) + show::mark(first);
        table.row(paint, [state.into(), since, pid(first), token, number, client, names.join(", "), info]);
    }
    let mut text = table.text();
    ways_out(&snapshot.entries, &mut text);
    deadlocks(snapshot, &mut text);
    text
}

/// The cycles, and what to do about them.
fn deadlocks(snapshot: &Snapshot, text: &mut String) {
    let first = |entry: &'_ Entry| (entry.arrival, show::who(entry));
    let who: HashMap<u64, String> = match snapshot.deadlocks.is_empty() {
        true => HashMap::new(),
        false => snapshot.entries.iter().map(first).collect(),
    };
    for Deadlock { cycle, .. } in &snapshot.deadlocks {
        let head = painted_if(show::colour(), Paint::Red, "Deadlock");
        let _ = write!(text, "\n{head}: each of these waits for the next, the last for the first.\n");
        for step in cycle {
            let who = who.get(&step.arrival).map(|who| format!(" ({who})")).unwrap_or_default();
            let _ = match &step.waits_for {
                Some(name) => {
                    writeln!(text, "  request {}{who} waits for {}", step.arrival, show::name(name))
                }
                None => writeln!(text, "  request {}{who} waits for what it asked for next", step.arrival),
            };
        }
        if let Some(name) = cycle.iter().find_map(|step| step.waits_for.as_ref()) {
            let _ =
                writeln!(text, "End one of them, or break a lock: lockkeeper release {}", show::name(name));
        }
    }
}

/// The entries of each request.
fn requests(entries: &[Entry]) -> impl Iterator<Item = &[Entry]> {
    entries.chunk_by(|one, other| one.arrival == other.arrival)
}

fn state(entry: &Entry) -> (Paint, &'static str) {
    if entry.token.is_some() { (Paint::Green, "held") } else { (Paint::Yellow, "waiting") }
}

/// How to end unverifiable sessions.
fn ways_out(entries: &[Entry], text: &mut String) {
    let mut ways_out: Vec<_> = entries.iter().filter_map(show::way_out).collect();
    ways_out.sort_unstable();
    ways_out.dedup();
    if !ways_out.is_empty() {
        text.push_str("\nUnverifiable: the daemon cannot tell whether the process is alive.\n");
        ways_out.iter().for_each(|way_out| _ = writeln!(text, "  {way_out}"));
    }
}

fn pid(entry: &Entry) -> String {
    show::pid(entry).map(|pid| pid.to_string()).unwrap_or_default()
}

fn name_and_mode(entry: &Entry) -> String {
    let shared = if entry.mode == Mode::Shared { " (shared)" } else { "" };
    show::name(&entry.name) + shared
}

#[cfg(test)]
mod tests {
    use super::{inspect_json, inspect_table, only, query_json, query_table};
    use lockkeeper_client::{Deadlock, Entry, Snapshot, Step};
    use lockkeeper_core::{Mode, Name};

    fn entries() -> Vec<Entry> {
        let held = Entry {
            name: Name::from("a \"b\"\u{1b}"),
            mode: Mode::Exclusive,
            client_id: "c0".into(),
            arrival: 1,
            token: Some(1 << 60),
            info: Some("nightly".into()),
            since: 1500,
            nested_in: None,
            stole: true,
            owner: Some("pid 71 ann@here".into()),
        };
        let too = Entry { name: Name::from("z"), mode: Mode::Shared, ..held.clone() };
        let (token, info, owner) = (None, None, None);
        let waits =
            Entry { token, info, owner, client_id: "c1".into(), arrival: 2, stole: false, ..too.clone() };
        vec![held, too, Entry { nested_in: Some(1), ..waits }]
    }

    #[test]
    fn json_of_a_query_is_one_line_of_held_and_pending() {
        let common = r#""clientId":"c0","token":"1152921504606846976","info":"nightly","pid":71,"owner":"pid 71 ann@here","since":1500}"#;
        let expected = format!(
            "{}{common},{}{common}{}\n",
            r#"{"held":[{"name":"a \"b\"\u001b","mode":"exclusive","#,
            r#"{"name":"z","mode":"shared","#,
            r#"],"pending":[{"name":"z","mode":"shared","clientId":"c1","since":1500}]}"#
        );
        assert_eq!(query_json(&entries()), expected);
        assert_eq!(query_json(&[]), "{\"held\":[],\"pending\":[]}\n");
    }

    fn snapshot() -> Snapshot {
        let cycle = [(1, None), (2, Some("z"))].map(|(arrival, waits_for)| Step {
            arrival,
            client_id: String::new(),
            waits_for: waits_for.map(Name::from),
        });
        let deadlock = Deadlock { words: String::new(), cycle: cycle.into() };
        Snapshot { entries: entries(), deadlocks: vec![deadlock], last_token: 0 }
    }

    #[test]
    fn json_of_an_inspection_has_requests_with_their_scopes_and_deadlocks() {
        let expected = concat!(
            r#"{"held":[{"request":"1","scope":[{"name":"a \"b\"\u001b","mode":"exclusive"},{"name":"z","mode":"shared"}],"#,
            r#""clientId":"c0","token":"1152921504606846976","info":"nightly","pid":71,"owner":"pid 71 ann@here","since":1500,"stole":true}],"#,
            r#""pending":[{"request":"2","scope":[{"name":"z","mode":"shared"}],"clientId":"c1","since":1500,"#,
            r#""nestedIn":"1","stole":false}],"#,
            r#""deadlocks":[{"cycle":[{"request":"1"},{"request":"2","waitsFor":{"name":"z"}}]}]}"#,
            "\n"
        );
        assert_eq!(inspect_json(&snapshot()), expected);
    }

    #[test]
    fn tables_are_for_people() {
        let shown = query_table(&entries(), None);
        assert!(shown.starts_with("STATE    NAME"), "{shown}");
        assert!(
            shown.contains("1.5s") && shown.contains("client c1") && !shown.contains('\u{1b}'),
            "{shown}"
        );
        assert!(query_table(&[], None).starts_with("Nobody holds a lock"));
        assert!(query_table(&[], Some(&Name::from("a"))).starts_with("Nobody holds a,"));
        let shown = inspect_table(&snapshot(), None);
        for part in
            ["\ndeadlock  1.5s", "2 in 1", "1 (stole)", "z (shared)", "Deadlock:", "lockkeeper release z"]
        {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }

    #[test]
    fn an_inspection_of_a_name_keeps_whole_requests() {
        let mut snapshot = snapshot();
        only(&mut snapshot, &Name::from("a \"b\"\u{1b}"));
        assert_eq!((snapshot.entries.len(), snapshot.deadlocks.len()), (2, 1));
        only(&mut snapshot, &Name::from("b"));
        assert_eq!((snapshot.entries.len(), snapshot.deadlocks.len()), (0, 0));
    }
}
