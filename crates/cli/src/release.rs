//! `lockkeeper release`: breaks every lock of a name, or ends a session.

use crate::{Done, Failure, args, args::Release, session, show};
use lockkeeper_client::{Entry, Session};
use lockkeeper_core::Name;
use std::{
    io::{IsTerminal, stderr, stdin},
    process::ExitCode,
};

pub(crate) fn release(args: Release) -> Done {
    let session = session::open()?;
    let Some(name) = args.name.as_deref().map(args::name) else {
        return end(&session, &args.client.unwrap_or_default());
    };
    let holders = || -> Result<Vec<Entry>, Failure> {
        let question = |session: &Session, then| session.query_then(Some(&name), then);
        let mut entries = session::ask(&session, question)?.entries;
        entries.retain(|entry| entry.token.is_some());
        Ok(entries)
    };
    let mut held = holders()?;
    if !args.yes && !held.is_empty() && stdin().is_terminal() && stderr().is_terminal() {
        if !confirmed(&name, &held) {
            eprintln!("Nothing was broken.");
            return Ok(ExitCode::FAILURE);
        }
        held = holders()?;
    }
    if !held.is_empty() {
        session::ask(&session, |session, then| session.force_release_then(&name, then))?;
    }
    match held.len() {
        0 => println!("Nobody holds {}: there is nothing to break.", show::name(&name)),
        1 => println!("Broke 1 lock of {}.", show::name(&name)),
        count => println!("Broke {count} locks of {}.", show::name(&name)),
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends the session of a client.
fn end(session: &Session, client: &str) -> Done {
    match session::ask(session, |session, then| session.end_session_then(client, then))? {
        0 => Err((1, format!("there is no client {} in this bucket", show::label(client)))),
        _ => {
            println!("Ended the session of {}.", show::label(client));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Shows whose locks will be broken, and asks.
fn confirmed(name: &Name, held: &[Entry]) -> bool {
    for holder in held {
        eprintln!("{} is {}", show::name(name), show::held_by(holder));
    }
    eprint!("Break it? Whoever holds it is told, and should stop. [y/N] ");
    let mut answer = String::new();
    stdin().read_line(&mut answer).is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}
