//! A fleet on this machine, to try out: etcd and three daemons on the loopback.

use crate::{Result, cargo, root, setup};
use lockkeeper_testing::{Cluster, Daemons, Setup};
use std::io::stdin;

/// Starts so many members of etcd, and three daemons. Ends with the next line of its input, or with
/// its end.
pub(crate) fn run(members: usize) -> Result {
    setup::command("etcd", "etcd-server")?;
    cargo(&["build", "--release", "--package", "lockkeeper-cli"])?;
    let program = root().join("target/release/lockkeeper");
    let program = program.canonicalize().map_err(|error| error.to_string())?;
    let failed = |error: std::io::Error| error.to_string();
    let cluster = Cluster::start(members).map_err(failed)?;
    let store = cluster.url("lockkeeper");
    let setup = Setup { program: program.clone(), store: store.clone(), more: vec!["--store-own".into()] };
    let daemons = Daemons::start(3, setup).map_err(failed)?;
    let (first, second, all) = (daemons.url(0), daemons.url(1), daemons.urls(1));
    let (program, socket) = (program.display(), daemons.socket(2));
    println!(
        "\
Three daemons share the log of {members} members of etcd:
  {first}
  {second}
  {third}

Try, in other terminals:
  {program} fleet --store {store}
      who leads, and how etcd is
  LOCKKEEPER_URL={all} {program} run job -- sleep 60
      hold a lock; a client with several URLs goes to the next daemon when one ends
  LOCKKEEPER_URL={first} {program} run job -- echo mine
      wait for it at another daemon
  LOCKKEEPER_URL=unix:{socket} {program} top
      look at both, from a third
  kill -9 $(pgrep -f 'listen ADDRESS'), with the host and port of the daemon that leads, as the first command shows it
      the lock stays held, the place in the queue stays, another daemon leads within two seconds

Press Enter to end it.",
        third = daemons.url(2),
        socket = socket.display(),
    );
    stdin().read_line(&mut String::new()).map_err(failed)?;
    Ok(())
}
