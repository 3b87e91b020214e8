//! Hosts of a network that can be cut in places: a network namespace for each, joined by a bridge.
//!
//! The bridge is in the namespace of this process, which must be a separate one: see
//! [`Network::alone`]. All of it ends with the processes in it.

use crate::{Process, run};
use std::{
    env,
    ffi::OsString,
    io,
    os::unix::process::CommandExt as _,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// Set in a process with a separate namespace.
const MARK: &str = "LOCKKEEPER_TESTING_NETWORK";

/// Where a program runs, and at which address it is reached.
#[derive(Clone, Debug)]
pub struct NetworkHost {
    /// Its address.
    pub address: String,
    /// What the command that runs there begins with.
    pub enter: Vec<OsString>,
}

impl NetworkHost {
    /// Here.
    pub fn loopback() -> Self {
        Self { address: "127.0.0.1".into(), enter: Vec::new() }
    }
}

/// The hosts.
pub struct Network {
    /// A process that keeps the namespace of a host.
    hosts: Vec<Process>,
}

impl Network {
    /// Starts this program again in a network namespace of its own, unless it is in one.
    ///
    /// # Errors
    ///
    /// If that is not possible: it needs root's rights, and `unshare` and `ip`.
    pub fn alone() -> io::Result<()> {
        if env::var_os(MARK).is_some() {
            return Ok(());
        }
        if !Command::new("unshare")
            .args(["--net", "ip", "link", "set", "lo", "up"])
            .output()?
            .status
            .success()
        {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut again = Command::new("unshare");
        again.arg("--net").arg(env::current_exe()?).args(env::args_os().skip(1)).env(MARK, "1");
        Err(again.exec())
    }

    /// Makes so many hosts. What their keepers print goes to a file in the folder.
    ///
    /// # Errors
    ///
    /// If this process has no namespace of its own, or not the rights.
    pub fn new(count: usize, folder: &Path) -> io::Result<Self> {
        if env::var_os(MARK).is_none() {
            return Err(io::Error::other("the network of this process is not its own"));
        }
        ip(&["link", "set", "lo", "up"])?;
        ip(&["link", "add", "hub", "type", "bridge"])?;
        ip(&["address", "add", "10.77.0.1/24", "dev", "hub"])?;
        ip(&["link", "set", "hub", "up"])?;
        let mut network = Self { hosts: Vec::new() };
        for at in 0..count {
            let words = ["unshare", "--net", "sleep", "infinity"].map(Into::into);
            network.hosts.push(Process::start(words.into(), &folder.join("hosts.log"))?);
            let (id, link) = (network.hosts[at].id(), link(at));
            let begun = Instant::now();
            while namespace(id)? == namespace(std::process::id())? {
                if begun.elapsed() > Duration::from_secs(60) {
                    return Err(io::Error::other("a host does not start"));
                }
                thread::sleep(Duration::from_millis(1));
            }
            ip(&["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &id.to_string()])?;
            ip(&["link", "set", &link, "master", "hub", "up"])?;
            let place = network.place(at);
            let inside = |words: &[&str]| {
                run(Command::new(&place.enter[0]).args(&place.enter[1..]).arg("ip").args(words))
            };
            inside(&["address", "add", &format!("{}/24", place.address), "dev", "eth0"])?;
            inside(&["link", "set", "eth0", "up"])?;
            inside(&["link", "set", "lo", "up"])?;
        }
        Ok(network)
    }

    /// A host.
    pub fn place(&self, at: usize) -> NetworkHost {
        let namespace = format!("--net=/proc/{}/ns/net", self.hosts[at].id());
        NetworkHost {
            address: format!("10.77.0.{}", 10 + at),
            enter: vec!["nsenter".into(), namespace.into()],
        }
    }

    /// Cuts a host off from some others only, or joins it again.
    ///
    /// # Errors
    ///
    /// If the system refuses.
    pub fn cut_from(&self, at: usize, others: impl IntoIterator<Item = usize>, off: bool) -> io::Result<()> {
        let enter = self.place(at).enter;
        let change = if off { "add" } else { "delete" };
        for other in others {
            let mut inside = Command::new(&enter[0]);
            inside.args(&enter[1..]).args(["ip", "route", change, "blackhole", &self.place(other).address]);
            run(&mut inside)?;
        }
        Ok(())
    }

    /// Cuts a host off from all others, or joins it again.
    ///
    /// # Errors
    ///
    /// If the system refuses.
    pub fn cut(&self, at: usize, off: bool) -> io::Result<()> {
        ip(&["link", "set", &link(at), if off { "down" } else { "up" }])
    }
}

fn link(at: usize) -> String {
    format!("host{at}")
}

fn namespace(process: u32) -> io::Result<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/net"))
}

fn ip(words: &[&str]) -> io::Result<()> {
    run(Command::new("ip").args(words))
}
