//! What must outlive the daemon, in its state directory. One daemon at a time has it.
//!
//! * `key`: signs grants, so that nobody can claim what he never had.
//! * `tokens`: no token up to this number will be given out again. Written ahead, durably, in large steps.
//! * `sessions`: who has a session. A session of this machine ends with the machine, so this need not be durable: it
//!   outlives the daemon as it is.
//! * `network`: in which life of the machine sessions on the network were last served. Those outlast the machine, and if it
//!   crashes, the list of them may be lost.
//! * `state`: what the sessions had, written by a daemon that leaves in good order. Whoever starts next takes it away.

use crate::{Error, process::Process, session::Peer};
use lockkeeper_core::{Mode, Name};
use lockkeeper_wire::{Claim, Seal, ToServer, frame};
use rustix::fs::{FlockOperation, flock};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::{
    fmt::Write as _,
    fs::{self, DirBuilder, File, OpenOptions},
    hash::Hasher,
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

/// Tokens that are reserved in one go.
const TOKENS: u64 = 1 << 20;

/// Bytes of the list of sessions beyond which it is written anew.
const LONG: u64 = 1 << 20;

pub(crate) struct Journal {
    dir: PathBuf,
    key: Seal,
    reserved: u64,
    sessions: File,
    /// The greatest ttl that the sessions were told.
    ttl: Duration,
    /// How long the list of sessions is.
    length: u64,
    /// Whether sessions on the network are served, and this life of the machine is still to be noted.
    unnoted: bool,
    /// Held as long as the daemon is.
    _lock: File,
}

/// A session of the daemon's former life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) id: String,
    pub(crate) secret: Seal,
    pub(crate) bucket: String,
    pub(crate) peer: Peer,
}

/// A request that a session had.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) rid: u64,
    pub(crate) scope: Vec<(Name, Mode)>,
    pub(crate) info: Option<Box<str>>,
    pub(crate) claim: Claim,
}

/// What a daemon finds when it starts.
pub(crate) struct Found {
    pub(crate) journal: Journal,
    pub(crate) sessions: Vec<Recorded>,
    /// For how long they may have to be waited for.
    pub(crate) ttl: Duration,
    /// Whether there may be others, of before the machine crashed.
    pub(crate) blind: bool,
    /// What each of them had, if the daemon before left in good order.
    pub(crate) state: Option<Vec<(String, Vec<Kept>)>>,
}

impl Journal {
    /// `network` says whether sessions on the network will be served.
    pub(crate) fn open(dir: &Path, ttl: Duration, network: bool) -> Result<Found, Error> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| Error::File(path, error)
        };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed(dir))?;
        let lock_path = dir.join("lock");
        let lock = create(&lock_path).map_err(failed(&lock_path))?;
        alone(&lock, &lock_path)?;

        let key_path = dir.join("key");
        let key = match fs::read_to_string(&key_path) {
            Ok(hex) => from_hex(hex.trim()).ok_or_else(|| Error::Damaged(key_path, "no key".into()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = random();
                replace(&key_path, to_hex(&key).as_bytes()).map_err(failed(&key_path))?;
                key
            }
            Err(error) => return Err(Error::File(key_path, error)),
        };
        let tokens_path = dir.join("tokens");
        let reserved = match read_if_there(&tokens_path).map_err(failed(&tokens_path))? {
            Some(text) => {
                text.trim().parse().map_err(|_| Error::Damaged(tokens_path, "not a number".into()))?
            }
            None => 0,
        };
        let sessions_path = dir.join("sessions");
        let text = read_if_there(&sessions_path).map_err(failed(&sessions_path))?.unwrap_or_default();
        let (recorded, mut former) = parse(&text);
        let state_path = dir.join("state");
        let state = match fs::read(&state_path) {
            Ok(bytes) => Some(
                read_state(&bytes).ok_or_else(|| Error::Damaged(state_path.clone(), "not a state".into()))?,
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(Error::File(state_path, error)),
        };
        let network_path = dir.join("network");
        let noted = read_if_there(&network_path).map_err(failed(&network_path))?;
        let noted = noted.as_ref().and_then(|noted| noted.trim().split_once(' '));
        let noted = noted.filter(|(boot, _)| state.is_none() && *boot != this_boot());
        if let Some((_, millis)) = noted {
            former = former.max(Duration::from_millis(millis.parse().unwrap_or(0)));
        }
        let blind = noted.is_some();
        let ttl = if recorded.is_empty() && !blind { ttl } else { former.max(ttl) };
        // The list is replaced whole, never emptied: who is killed here has lost nobody.
        let list = create(&dir.join("sessions.new")).map_err(failed(&sessions_path))?;
        let mut journal = Self {
            dir: dir.into(),
            key,
            reserved,
            sessions: list,
            ttl,
            length: 0,
            unnoted: network,
            _lock: lock,
        };
        if !blind {
            journal.note().map_err(failed(&network_path))?;
        }
        journal.rewrite(recorded.iter()).map_err(failed(&sessions_path))?;
        if state.is_some() {
            // It must not be there again after a crash: it will be the past.
            fs::remove_file(&state_path).and_then(|()| sync(dir)).map_err(failed(&state_path))?;
        }
        Ok(Found { journal, sessions: recorded, ttl, blind, state })
    }

    /// Notes, durably, that from now on the list of sessions is whole in this life of the machine.
    pub(crate) fn note(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.unnoted) {
            let note = format!("{} {}\n", this_boot(), self.ttl.as_millis());
            replace(&self.dir.join("network"), note.as_bytes())?;
        }
        Ok(())
    }

    /// The last token that a former life can have given out.
    pub(crate) fn last_token(&self) -> u64 {
        self.reserved
    }

    /// Makes sure that so many tokens after `last` are this life's alone.
    pub(crate) fn reserve(&mut self, last: u64, count: u64) -> io::Result<()> {
        if last + count <= self.reserved {
            return Ok(());
        }
        let reserved = last + count + TOKENS;
        replace(&self.dir.join("tokens"), reserved.to_string().as_bytes())?;
        self.reserved = reserved;
        Ok(())
    }

    /// Signs a grant.
    pub(crate) fn receipt<'a>(
        &self,
        session: &str,
        rid: u64,
        token: u64,
        scope: impl Iterator<Item = (&'a [u8], Mode)>,
    ) -> Seal {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write_u64(rid);
        hasher.write_u64(token);
        let mut field = |bytes: &[u8], shared: bool| {
            hasher.write_u64(bytes.len() as u64);
            hasher.write(bytes);
            hasher.write_u8(shared.into());
        };
        field(session.as_bytes(), false);
        scope.for_each(|(name, mode)| field(name, mode == Mode::Shared));
        hasher.finish128().as_bytes()
    }

    pub(crate) fn opened(&mut self, session: &Recorded) -> io::Result<()> {
        self.append(&line(session))
    }

    pub(crate) fn closed(&mut self, id: &str) -> io::Result<()> {
        self.append(&format!("close {id}\n"))
    }

    fn append(&mut self, line: &str) -> io::Result<()> {
        self.length += line.len() as u64;
        self.sessions.write_all(line.as_bytes())
    }

    pub(crate) fn is_long(&self) -> bool {
        self.length > LONG
    }

    /// Writes the list of sessions anew.
    pub(crate) fn rewrite<'a>(&mut self, sessions: impl Iterator<Item = &'a Recorded>) -> io::Result<()> {
        let (path, new) = (self.dir.join("sessions"), self.dir.join("sessions.new"));
        let first = format!("ttl {}\n", self.ttl.as_millis());
        let text: String = std::iter::once(first).chain(sessions.map(line)).collect();
        let mut file = create(&new)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&new, &path)?;
        (self.sessions, self.length) = (file, 0);
        Ok(())
    }

    /// Leaves what the sessions have to whoever starts next.
    pub(crate) fn leave(&mut self, state: &[(Recorded, Vec<Kept>)]) -> io::Result<()> {
        self.rewrite(state.iter().map(|(session, _)| session))?;
        self.sessions.sync_all()?;
        let mut bytes = Vec::new();
        for (session, requests) in state {
            let resume = Some((&session.id[..], session.secret));
            let hello = ToServer::Hello {
                version: lockkeeper_wire::VERSION,
                bucket: &session.bucket,
                resume,
                token: None,
            };
            frame::append(&mut bytes, |out| hello.encode(out));
            for Kept { rid, scope, info, claim } in requests {
                let scope = scope.iter().map(|(name, mode)| (name.as_bytes(), *mode)).collect();
                let kept = ToServer::Reclaim { rid: *rid, scope, info: info.as_deref(), claim: *claim };
                frame::append(&mut bytes, |out| kept.encode(out));
            }
        }
        replace(&self.dir.join("state"), &bytes)
    }
}

/// Takes a file for this process alone, for as long as it has it open.
pub(crate) fn alone(file: &File, path: &Path) -> Result<(), Error> {
    flock(file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => Error::Running(path.into()),
        error => Error::File(path.into(), error.into()),
    })
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path)
}

/// Puts a file in the place of another, durably: after a crash there is the one or the other.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    sync(path.parent().unwrap_or(Path::new(".")))
}

fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Tells the lives of the machine apart.
fn this_boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().into()
}

fn read_if_there(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn line(Recorded { id, secret, bucket, peer }: &Recorded) -> String {
    let secret = to_hex(secret);
    match peer {
        Peer::Local(Some(Process { pid, started })) => {
            format!("open {id} {secret} {bucket} {pid} {started}\n")
        }
        Peer::Local(None) => format!("open {id} {secret} {bucket}\n"),
        Peer::Network => format!("open {id} {secret} {bucket} network\n"),
    }
}

/// The sessions that were opened and not closed, and the ttl that they were told. A line that was cut off is no session:
/// its client was not answered.
fn parse(text: &str) -> (Vec<Recorded>, Duration) {
    let mut sessions: Vec<Recorded> = Vec::new();
    let mut closed = std::collections::HashSet::new();
    let mut ttl = Duration::ZERO;
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let mut fields = line.split(' ');
        match (fields.next(), fields.next()) {
            (Some("ttl"), Some(millis)) => ttl = Duration::from_millis(millis.parse().unwrap_or(0)),
            (Some("close"), Some(id)) => _ = closed.insert(id),
            (Some("open"), Some(id)) => {
                let secret = fields.next().and_then(from_hex);
                let (Some(secret), Some(bucket)) = (secret, fields.next()) else { continue };
                let peer = match (fields.next(), fields.next()) {
                    (Some("network"), _) => Peer::Network,
                    (pid, started) => Peer::Local(process(pid, started)),
                };
                sessions.push(Recorded { id: id.into(), secret, bucket: bucket.into(), peer });
            }
            _ => {}
        }
    }
    sessions.retain(|session| !closed.contains(&session.id[..]));
    (sessions, ttl)
}

fn process(pid: Option<&str>, started: Option<&str>) -> Option<Process> {
    Some(Process { pid: pid?.parse().ok()?, started: started?.parse().ok()? })
}

fn read_state(mut bytes: &[u8]) -> Option<Vec<(String, Vec<Kept>)>> {
    let mut state: Vec<(String, Vec<Kept>)> = Vec::new();
    while !bytes.is_empty() {
        let (message, length) = frame::first(bytes, frame::MAX_TO_CLIENT).ok()??;
        match ToServer::decode(message).ok()? {
            ToServer::Hello { resume: Some((id, _)), .. } => state.push((id.into(), Vec::new())),
            ToServer::Reclaim { rid, scope, info, claim } => {
                let scope = scope.into_iter().map(|(name, mode)| (Name::from(name), mode)).collect();
                state.last_mut()?.1.push(Kept { rid, scope, info: info.map(Into::into), claim });
            }
            _ => return None,
        }
        bytes = &bytes[length..];
    }
    Some(state)
}

pub(crate) fn random() -> Seal {
    let mut seal = Seal::default();
    getrandom::fill(&mut seal).expect("the system has randomness");
    seal
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn from_hex(hex: &str) -> Option<Seal> {
    let digits = hex.as_bytes();
    let mut seal = Seal::default();
    if digits.len() != 2 * seal.len() {
        return None;
    }
    for (byte, pair) in seal.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(seal)
}
