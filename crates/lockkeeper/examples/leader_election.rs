//! The Working Draft's "primary tab": one worker does the work that only one may do, by holding a
//! lock that it never gives back. When it is gone, the next in line takes over.
//!
//! ```text
//! cargo run --release --example leader_election
//! ```

use lockkeeper::{Error, Locks};
use std::{sync::mpsc, thread};

fn main() -> Result<(), Error> {
    let locks = Locks::new();
    let (tell, told) = mpsc::channel();

    // Each worker is an agent of its own, as a tab is: what it holds ends with it.
    let workers: Vec<_> = (1..=3)
        .map(|number| {
            let worker = locks.client_blocking()?;
            let (tell, (crash, crashes)) = (tell.clone(), mpsc::channel::<()>());
            let thread = thread::spawn(move || {
                let primary =
                    worker.request("primary").info(format!("worker {number}")).acquire_blocking()?;
                let _ = tell.send((number, primary.token()));
                // Sync with the server, clean up queued data, … until something goes wrong.
                let _ = crashes.recv();
                Ok::<_, Error>(())
            });
            Ok((crash, thread))
        })
        .collect::<Result<_, Error>>()?;

    for _ in 0..workers.len() {
        let Ok((primary, token)) = told.recv() else { break };
        println!("worker {primary} is the primary (fencing token {token})");
        for waiting in locks.inspect_blocking()?.pending {
            println!("  {} waits its turn", waiting.info.unwrap_or_default());
        }
        println!("worker {primary} crashes");
        let (crash, _) = &workers[primary - 1];
        let _ = crash.send(());
    }
    for (_, thread) in workers {
        thread.join().expect("a worker does not panic")?;
    }
    println!("nobody is left");
    Ok(())
}
