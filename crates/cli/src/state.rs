//! `lockkeeper state`: checks a daemon's state directory, or moves its contents aside.

use crate::{
    Done,
    args::{State, StateCommand},
    exit,
    serve::default_state_dir,
};
use lockkeeper_server::log;
use std::{path::PathBuf, process::ExitCode};

pub(crate) fn state(args: State) -> Done {
    let dir = match args.state_dir {
        Some(dir) => dir,
        None => default_state_dir().map_err(|why| (exit::USAGE, why))?,
    };
    match args.command {
        StateCommand::Check => check(dir),
        StateCommand::Reset => reset(dir),
    }
}

/// Prints the contents. Fails if a daemon would refuse them.
fn check(dir: PathBuf) -> Done {
    let report = log::check(&dir, lockkeeper_server::boot_id());
    println!("state directory  {}", dir.display());
    println!("in use           {}", if report.in_use { "yes: a daemon has it open" } else { "no" });
    match &report.snapshot {
        Some(snapshot) => {
            println!("snapshot         at {}, {} bytes", snapshot.position, snapshot.bytes);
        }
        None => println!("snapshot         none"),
    }
    for segment in &report.segments {
        let name = segment.path.file_name().unwrap_or_default().to_string_lossy();
        println!(
            "segment          {name}: {} records from {}, {} bytes",
            segment.records, segment.first, segment.end
        );
    }
    if let Some(torn) = report.torn.as_ref().filter(|_| !report.in_use) {
        let name = torn.path.file_name().unwrap_or_default().to_string_lossy();
        println!(
            "torn tail        {name} at byte {}: {} bytes, of which nobody was told",
            torn.offset, torn.bytes
        );
    }
    if report.crashed {
        println!(
            "crash            the machine crashed: a daemon ends earlier sessions and waits for their leases"
        );
    }
    match report.refused {
        Some(why) => Err((exit::UNAVAILABLE, why.to_string())),
        None => {
            println!("ok");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Moves the files aside. The next daemon begins with nothing held.
fn reset(dir: PathBuf) -> Done {
    match log::reset(&dir).map_err(|error| (exit::UNAVAILABLE, error.to_string()))? {
        Some(reset) => {
            println!("moved {} files to {}", reset.files.len(), reset.moved_to.display());
            println!("The next daemon begins with no locks held. Clients that are still alive lose theirs.");
        }
        None => println!("nothing to reset in {}", dir.display()),
    }
    Ok(ExitCode::SUCCESS)
}
