//! `lockkeeper held`: whether the surrounding command or script holds a lock.

use crate::{Done, acquire, args, args::Held, session};
use std::{process::ExitCode, time::Instant};

pub(crate) fn held(args: &Held) -> Done {
    if !acquire::is_nested() {
        return Ok(ExitCode::FAILURE);
    }
    let session = session::open()?;
    for name in &args.names {
        let held = acquire::held_around(&session, &args::name(name), Instant::now() + session::ANSWER)?;
        if held.is_empty() {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}
