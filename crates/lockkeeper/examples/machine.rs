//! Two processes take turns: each is this program, and asks this user's daemon for the same lock.
//!
//! ```text
//! cargo run --release --features connect --example machine
//! ```
//!
//! The daemon is started if there is none; the program `lockkeeper` must be on the `PATH` for that.

use lockkeeper::{Error, Locks};
use std::{
    env,
    process::{Command, exit},
    time::Duration,
};

fn main() {
    let done = match env::args().nth(1) {
        Some(me) => smol::block_on(take_turns(&me)).map_err(|error| error.to_string()),
        None => start_two().map_err(|error| error.to_string()),
    };
    if let Err(error) = done {
        eprintln!("{error}");
        exit(1);
    }
}

async fn take_turns(me: &str) -> Result<(), Error> {
    let locks = Locks::connect_default().bucket("example").await?;
    for turn in 1..=3 {
        let request = locks.request("the pen").info(format!("{me}, turn {turn}"));
        request
            .run(async |lock| {
                println!("{me} has {}, fencing token {}", lock.name(), lock.token());
                // The other process waits meanwhile, and so it is its turn next. Any executor would
                // do instead of this.
                smol::Timer::after(Duration::from_millis(100)).await;
                println!("{me} gives it back");
            })
            .await?;
    }
    Ok(())
}

fn start_two() -> std::io::Result<()> {
    let this = env::current_exe()?;
    let both: Vec<_> =
        ["Ann", "Bob"].iter().map(|me| Command::new(&this).arg(me).spawn()).collect::<Result<_, _>>()?;
    for mut process in both {
        if !process.wait()?.success() {
            exit(1);
        }
    }
    Ok(())
}
