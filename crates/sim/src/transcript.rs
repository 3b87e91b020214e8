//! The inputs and outputs of one client's session as JSON, for replay by another implementation.

use crate::client::Input;
use lockkeeper_core::{Cause, Mode, Name};
use lockkeeper_service::{Answer, Event, Micros, Outcome, Outer, Session};
use std::fmt::Write;

/// One input of a session, and all that came of it.
pub(crate) fn step(
    now: Micros,
    input: &Input,
    output: &[u8],
    events: &[Event<()>],
    drop: bool,
    session: &Session<()>,
) -> String {
    let number = |at: Option<Micros>| at.map_or("null".into(), |at| at.to_string());
    let events: Vec<_> = events.iter().map(show_event).collect();
    format!(
        r#"{{"now":{now},"input":{},"output":"{}","events":[{}],"drop":{drop},"connectAt":{},"nextWake":{}}}"#,
        show_input(input),
        hex(output),
        events.join(","),
        number(session.connect_at()),
        number(session.next_wake()),
    )
}

fn show_input(input: &Input) -> String {
    match input {
        Input::Connected => r#"["connected",null]"#.into(),
        Input::ConnectFailed(why) => format!(r#"["connectFailed",{}]"#, text(why)),
        Input::Message(number, message) => format!(r#"["message",{number},"{}"]"#, hex(message)),
        Input::Disconnected(number) => format!(r#"["disconnected",{number}]"#),
        Input::Request(request) => {
            let scope: Vec<_> = request
                .scope
                .iter()
                .map(|(name, mode)| format!("[{},{}]", show_name(name), *mode == Mode::Shared))
                .collect();
            let nested_in = match request.nested_in {
                Some(Outer::Own(key)) => key.to_string(),
                _ => "null".into(),
            };
            let info = request.info.as_deref().map_or("null".into(), text);
            format!(
                r#"["request",{{"scope":[{}],"flags":{},"nestedIn":{nested_in},"info":{info}}}]"#,
                scope.join(","),
                request.flags.bits(),
            )
        }
        Input::Release(key, timed_out) => format!(r#"["release",{key},{timed_out}]"#),
        Input::Detach(key, timed_out) => format!(r#"["detach",{key},{timed_out}]"#),
        Input::Query(name, deadlocks) => {
            format!(r#"["query",{},{deadlocks}]"#, name.as_ref().map_or("null".into(), show_name))
        }
        Input::ForceRelease(name) => format!(r#"["forceRelease",{}]"#, show_name(name)),
        Input::EndSession(client) => format!(r#"["endSession",{}]"#, text(client)),
        Input::Close => r#"["close"]"#.into(),
        Input::Confirm => r#"["confirm"]"#.into(),
        Input::Wake => r#"["wake"]"#.into(),
    }
}

fn show_event(event: &Event<()>) -> String {
    match event {
        Event::Opened { client_id, resumed } => format!(r#"["opened",{},{resumed}]"#, text(client_id)),
        Event::Unreachable(failure) => format!(r#"["unreachable",{}]"#, text(&failure.to_string())),
        Event::Failed(failure) => format!(r#"["failed",{}]"#, text(&failure.to_string())),
        Event::SessionLost => r#"["sessionLost"]"#.into(),
        Event::Closed => r#"["closed"]"#.into(),
        Event::Fifo => r#"["fifo"]"#.into(),
        Event::Queued { key, arrival } => format!(r#"["queued",{key},"{arrival}"]"#),
        Event::Granted { key, token } => format!(r#"["granted",{key},"{token}"]"#),
        Event::Changed { key, .. } => format!(r#"["changed",{key}]"#),
        Event::Over { key, outcome, .. } => format!(r#"["over",{key},{}]"#, show_outcome(outcome)),
    }
}

fn show_outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Unavailable => r#""unavailable""#.into(),
        Outcome::Released => r#""released""#.into(),
        Outcome::Broken { cause, .. } => {
            format!(r#""broken","{}""#, if *cause == Cause::Stolen { "stolen" } else { "lost" })
        }
        Outcome::Refused { code, message } => format!(r#""refused",{code},{}"#, text(message)),
        Outcome::Deadlocked(deadlock) => format!(r#""deadlocked",{}"#, text(&deadlock.words)),
        Outcome::Answer(Answer::Snapshot(snapshot)) => format!(r#""snapshot",{}"#, snapshot.entries.len()),
        Outcome::Answer(Answer::Done { count }) => format!(r#""done","{count}""#),
        Outcome::Failed(failure) => format!(r#""failed",{}"#, text(&failure.to_string())),
    }
}

fn show_name(name: &Name) -> String {
    text(&name.to_string())
}

/// A JSON string.
pub(crate) fn text(words: &str) -> String {
    let mut out = String::from('"');
    for char in words.chars() {
        match char {
            '"' | '\\' => out.extend(['\\', char]),
            char if char.is_control() => _ = write!(out, "\\u{:04x}", u32::from(char)),
            char => out.push(char),
        }
    }
    out.push('"');
    out
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        _ = write!(out, "{byte:02x}");
        out
    })
}
