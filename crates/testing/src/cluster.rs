//! A cluster of etcd.

use crate::{Folder, NetworkHost, Process, free_ports};
use rustix::process::Signal;
use std::{
    fs,
    io::{self, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// How long etcd may take to listen.
const START: Duration = Duration::from_secs(60);

/// How long a member that is asked how it is may take to answer.
const ANSWER: Duration = Duration::from_millis(300);

/// Members of etcd.
pub struct Cluster {
    members: Vec<Member>,
    words: Vec<Vec<String>>,
    folder: Folder,
    tls: bool,
}

struct Member {
    place: NetworkHost,
    port: u16,
    process: Option<Process>,
}

impl Cluster {
    /// Starts so many members.
    ///
    /// # Errors
    ///
    /// If etcd is not installed, or does not start.
    pub fn start(count: usize) -> io::Result<Self> {
        Self::start_with(count, &[])
    }

    /// The same, with more arguments for each member.
    ///
    /// # Errors
    ///
    /// If etcd is not installed, or does not start.
    pub fn start_with(count: usize, more: &[&str]) -> io::Result<Self> {
        Self::start_speaking("http", vec![NetworkHost::loopback(); count], more)
    }

    /// The same, with TLS for its clients: the arguments name the certificates.
    ///
    /// # Errors
    ///
    /// If etcd is not installed, or does not start.
    pub fn start_with_tls(count: usize, more: &[&str]) -> io::Result<Self> {
        Self::start_speaking("https", vec![NetworkHost::loopback(); count], more)
    }

    /// The same, each member in its place.
    ///
    /// # Errors
    ///
    /// If etcd is not installed, or does not start.
    pub fn start_in(places: Vec<NetworkHost>) -> io::Result<Self> {
        Self::start_speaking("http", places, &[])
    }

    fn start_speaking(scheme: &'static str, places: Vec<NetworkHost>, more: &[&str]) -> io::Result<Self> {
        let count = places.len();
        let folder = Folder::new("etcd")?;
        let ports = free_ports(2 * count)?;
        let (clients, peers) = ports.split_at(count);
        let peer = |at: usize| format!("http://{}:{}", places[at].address, peers[at]);
        let named: Vec<_> = (0..count).map(|at| format!("e{at}={}", peer(at))).collect();
        let words = (0..count).map(|at| {
            let (client, peer) = (format!("{scheme}://{}:{}", places[at].address, clients[at]), peer(at));
            let dir = folder.path().join(format!("e{at}")).display().to_string();
            let flags = [
                ("name", format!("e{at}")),
                ("data-dir", dir),
                ("listen-client-urls", client.clone()),
                ("advertise-client-urls", client),
                ("listen-peer-urls", peer.clone()),
                ("initial-advertise-peer-urls", peer),
                ("initial-cluster", named.join(",")),
                ("log-level", "error".into()),
            ];
            let flags = flags.into_iter().flat_map(|(name, value)| [format!("--{name}"), value]);
            flags.chain(more.iter().map(ToString::to_string)).collect()
        });
        let words = words.collect();
        let members = places.into_iter().zip(clients);
        let members = members.map(|(place, &port)| Member { place, port, process: None }).collect();
        let mut cluster = Self { members, words, folder, tls: scheme == "https" };
        for at in 0..count {
            cluster.run(at)?;
        }
        for at in 0..count {
            cluster.wait(at)?;
        }
        Ok(cluster)
    }

    /// The value of `--store`, with a prefix for the keys.
    pub fn url(&self, prefix: &str) -> String {
        let address = |member: &Member| format!("{}:{}", member.place.address, member.port);
        let members: Vec<_> = self.members.iter().map(address).collect();
        let scheme = if self.tls { "etcds" } else { "etcd" };
        format!("{scheme}://{}/{prefix}", members.join(","))
    }

    /// How many members it has.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Starts a member, or starts it again on what it has left.
    ///
    /// # Errors
    ///
    /// If etcd cannot be started.
    pub fn run(&mut self, at: usize) -> io::Result<()> {
        let enter = self.members[at].place.enter.iter().cloned();
        let words = enter.chain(["etcd".into()]).chain(self.words[at].iter().map(Into::into)).collect();
        self.members[at].process = Some(Process::start(words, &self.log(at))?);
        Ok(())
    }

    fn log(&self, at: usize) -> PathBuf {
        self.folder.path().join(format!("e{at}.log"))
    }

    /// Waits until a member listens.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn wait(&mut self, at: usize) -> io::Result<()> {
        let begun = Instant::now();
        loop {
            let Member { place, port, .. } = &self.members[at];
            if TcpStream::connect((place.address.as_str(), *port)).is_ok() {
                return Ok(());
            }
            let alive = self.members[at].process.as_mut().is_some_and(Process::is_alive);
            if !alive || begun.elapsed() > START {
                let log = fs::read_to_string(self.log(at)).unwrap_or_default();
                return Err(io::Error::other(format!("etcd does not start (Debian's etcd-server): {log}")));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends a member where it stands.
    pub fn kill(&mut self, at: usize) {
        self.members[at].process = None;
    }

    /// Copies what every member has: a backup. They are started again.
    ///
    /// # Errors
    ///
    /// If files cannot be copied, or etcd does not start.
    pub fn back_up(&mut self) -> io::Result<()> {
        self.replace("e", "backup")
    }

    /// Goes back to the backup.
    ///
    /// # Errors
    ///
    /// If files cannot be copied, or etcd does not start.
    pub fn restore(&mut self) -> io::Result<()> {
        self.replace("backup", "e")
    }

    fn replace(&mut self, from: &str, to: &str) -> io::Result<()> {
        let dir = |name: &str, at: usize| self.folder.path().join(format!("{name}{at}"));
        let dirs: Vec<_> = (0..self.len()).map(|at| (dir(from, at), dir(to, at))).collect();
        (0..self.len()).for_each(|at| self.kill(at));
        for (from, to) in dirs {
            if to.exists() {
                fs::remove_dir_all(&to)?;
            }
            let copied = Command::new("cp").arg("-a").args([from, to]).status()?;
            if !copied.success() {
                return Err(io::Error::other("cp failed"));
            }
        }
        (0..self.len()).try_for_each(|at| self.run(at))?;
        (0..self.len()).try_for_each(|at| self.wait(at))
    }

    /// The member that leads, as one of those that answer says.
    pub fn leader(&self) -> Option<usize> {
        let status: Vec<_> = (0..self.len()).map(|at| self.status(at)).collect();
        let leader = status.iter().flatten().find_map(|status| number_in(status, "leader"))?;
        status.iter().position(|status| {
            status.as_deref().and_then(|status| number_in(status, "member_id")) == Some(leader)
        })
    }

    /// What a member says of itself, if it answers soon.
    fn status(&self, at: usize) -> Option<String> {
        let Member { place, port, .. } = &self.members[at];
        let address = format!("{}:{port}", place.address);
        let mut stream = TcpStream::connect_timeout(&address.parse().ok()?, ANSWER).ok()?;
        stream.set_read_timeout(Some(ANSWER)).ok()?;
        let body = "{}";
        let request = format!(
            "POST /v3/maintenance/status HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// Stops a member, or has it go on.
    pub fn signal(&self, at: usize, signal: Signal) {
        if let Some(process) = &self.members[at].process {
            process.signal(signal);
        }
    }
}

/// A number, which etcd writes as text, in its JSON.
fn number_in<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    json.split(&format!("\"{name}\":\"")).nth(1)?.split('"').next()
}
