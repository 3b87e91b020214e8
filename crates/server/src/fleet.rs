//! Daemons that share the log of a store: one leads, the others follow, relay, and take over.
//!
//! `lockkeeper_service::replica` decides who leads. This module drives it: it reads and watches
//! etcd while following, and commits the rounds of its daemon while leading. One operation is under
//! way at a time; everything that arrives meanwhile is the next one.

mod follow;
mod keys;
mod lead;
mod register;
mod report;
mod snapshot;

pub use report::{DaemonReport, LeaderReport, MemberReport, Report, report};

use crate::{
    Config, Error, Store, clock,
    daemon::{self, Daemon, random},
    gate::Gate,
    node::{Following, Leader, Node, Role},
};
use keys::Keys;
use lead::{End, Snapshots};
use lockkeeper_etcd::{Etcd, Guarded, Outcome};
use lockkeeper_service::{
    State,
    replica::{
        Astray, Extent, Head, Memory, Operation, RING, Recovery, Replica, ReplicaConfig, Reply, Revision,
    },
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fmt, fs,
    io::{self, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// How long a daemon that starts waits for etcd.
const START: Duration = Duration::from_secs(10);

/// How long it waits before it asks etcd again.
const PAUSE: Duration = Duration::from_millis(100);

/// How often it says that etcd does not answer.
const COMPLAIN: Duration = Duration::from_secs(10);

/// How long a leader that is to stop tries to hand over, at most.
const HAND_OVER: Duration = Duration::from_secs(5);

pub(crate) struct Fleet {
    etcd: Etcd,
    keys: Keys,
    /// The fleet's key, which authenticates daemons to each other.
    key: Vec<u8>,
    config: Config,
    store: Store,
    /// This daemon, to others.
    id: u64,
    /// How far the log has got, as seen also by earlier daemons of this state directory.
    memory: RefCell<Memory>,
    known_path: PathBuf,
    /// The extent in the file.
    remembered: Cell<Option<Extent>>,
    /// Told when the daemon is to stop.
    stop: Notify,
    /// When it was asked to stop.
    stopped: Cell<Option<Instant>>,
    stopping: Cell<bool>,
    /// When etcd last answered.
    answered: Cell<Instant>,
    complained: Cell<Option<Instant>>,
    /// Why etcd does not answer, while it does not.
    pub(crate) silence: Rc<RefCell<Option<Silence>>>,
}

/// etcd does not answer.
pub(crate) struct Silence {
    pub(crate) since: Instant,
    /// The members that were tried, and what became of it.
    tried: BTreeMap<String, String>,
}

impl Silence {
    fn new() -> Self {
        Self { since: Instant::now(), tried: BTreeMap::new() }
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tried: Vec<_> = self.tried.iter().map(|(member, why)| format!("{member} ({why})")).collect();
        write!(f, "etcd cannot be reached: tried {}", tried.join(", "))
    }
}

impl Fleet {
    /// Reaches etcd, and has the key that the fleet's daemons know each other by.
    pub(crate) async fn start(config: &Config, store: &Store) -> Result<(Self, Vec<u8>), Error> {
        // A slow etcd needs a longer takeover, and is given more time then.
        let deadline = store.etcd.deadline.max(store.takeover / 2);
        let settings = lockkeeper_etcd::Settings { deadline, ..store.etcd.clone() };
        let etcd = Etcd::new(&settings).map_err(|error| Error::Fleet(error.to_string()))?;
        let known_path = config.state_dir.join("fleet-position");
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&config.state_dir);
        made.map_err(|error| Error::File(config.state_dir.clone(), error))?;
        let known = match fs::read_to_string(&known_path) {
            Ok(text) => read_extent(&text).ok_or_else(|| {
                Error::File(known_path.clone(), io::Error::other("it has no position: was it edited?"))
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Extent::default(),
            Err(error) => return Err(Error::File(known_path, error)),
        };
        let mut fleet = Self {
            etcd,
            keys: Keys::new(&store.etcd.prefix),
            key: Vec::new(),
            config: config.clone(),
            store: store.clone(),
            id: u64::from_le_bytes(random()),
            memory: RefCell::new(Memory::new(known, store.accept_restored)),
            known_path,
            remembered: Cell::new(None),
            stop: Notify::new(),
            stopped: Cell::new(None),
            answered: Cell::new(Instant::now()),
            stopping: Cell::new(false),
            complained: Cell::new(None),
            silence: Rc::default(),
        };
        fleet.key = fleet.find_key().await?;
        let key = fleet.key.clone();
        Ok((fleet, key))
    }

    /// The key of the fleet. The first daemon makes it.
    async fn find_key(&self) -> Result<Vec<u8>, Error> {
        let name = self.keys.key();
        let mut silence = Silence::new();
        let key: Vec<u8> = random::<32>().into();
        while silence.since.elapsed() < START {
            match self.find_or_put(&name, &key).await {
                Ok(Some(key)) => return Ok(key),
                Ok(None) => {}
                Err(lockkeeper_etcd::Error::NoAnswer { member, why }) => {
                    silence.tried.insert(member, why);
                    let all = silence.tried.len() == self.etcd.members().len();
                    if all && silence.since.elapsed() > START / 3 {
                        break;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(Error::Fleet(error.to_string())),
            }
        }
        Err(Error::Fleet(silence.to_string()))
    }

    /// Reads first: an etcd that is full or read-only takes no write, not even one that its guard
    /// refuses.
    async fn find_or_put(&self, name: &[u8], key: &[u8]) -> Result<Option<Vec<u8>>, lockkeeper_etcd::Error> {
        if let (Some(kv), _) = self.etcd.get(name).await? {
            return Ok(Some(kv.value));
        }
        let puts = vec![(name.to_vec(), key.to_vec())];
        let writes = Guarded { key: name.to_vec(), guard: None, puts, deletes: Vec::new() };
        Ok(match self.etcd.write(writes).await? {
            Outcome::Done(_) => Some(key.to_vec()),
            Outcome::Refused(kv) => kv.map(|kv| kv.value),
        })
    }

    /// Has the daemon hand over, if it leads, and stop.
    pub(crate) fn stop(&self) {
        self.stopped.set(Some(Instant::now()));
        self.stop.notify_one();
    }

    /// Done when the daemon is to stop, and cannot hand over: etcd has not answered for as long as
    /// an attempt at each member may take, and two if there is one; or it answers, and takes no
    /// writes for longer. The process then stops. To the other daemons it was killed, which is as
    /// safe.
    async fn stop_deadline(&self) {
        let attempts = u32::try_from(self.etcd.members().len()).unwrap_or(u32::MAX).max(2);
        let patience = self.etcd.deadline().saturating_mul(attempts).min(HAND_OVER);
        loop {
            let Some(stopped) = self.stopped.get() else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let silent = self.answered.get().max(stopped).elapsed();
            let left = patience.saturating_sub(silent).min(HAND_OVER.saturating_sub(stopped.elapsed()));
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }

    /// Follows and leads, in turns, until it is stopped.
    pub(crate) async fn run(&self, node: &Rc<Node>) -> Result<(), Error> {
        let worked = tokio::select! {
            worked = self.work(node) => worked,
            () = self.register(node) => Ok(()),
        };
        node.set_role(Role::Stopping);
        self.remember().await;
        // Others forget it anyway, after some minutes.
        if self.silence.borrow().is_none() {
            let _ = self.etcd.delete(self.keys.daemon(self.id), Vec::new()).await;
        }
        worked
    }

    async fn work(&self, node: &Rc<Node>) -> Result<(), Error> {
        loop {
            let Some((mut state, replica)) = self.follow(node).await? else { return Ok(()) };
            let owner = replica.head().map_or(0, |head| head.owner);
            tracing::info!(position = replica.position(), "leading");
            let snapshots = Snapshots::begin(self, &mut state, &replica);
            let gate: Rc<Gate> = Rc::clone(&node.gate);
            let daemon = Daemon::lead(&self.config, gate, state, replica.head())?;
            let daemon = Rc::new(RefCell::new(daemon));
            if let Some(relays) = &node.relays {
                relays.lead(owner);
            }
            node.set_role(Role::Leading(Rc::clone(&daemon)));
            let ending = tokio::select! {
                ending = self.lead(&daemon, replica, snapshots) => ending,
                () = daemon::run(&daemon) => Ok(End::Deposed),
                () = self.stop_deadline() => Ok(End::GaveUp),
            };
            daemon.borrow_mut().depose();
            node.set_role(Role::Following(Following::default()));
            if let Some(failure) = daemon.borrow_mut().take_failure() {
                return Err(failure);
            }
            match ending? {
                End::Deposed => tracing::warn!("another daemon leads: following"),
                End::HandedOver => {
                    tracing::info!("handed over");
                    return Ok(());
                }
                End::GaveUp => {
                    let silence = self.silence.borrow().as_ref().map(ToString::to_string);
                    let why = silence.unwrap_or_else(|| "etcd accepts no writes".into());
                    let takeover = self.store.takeover;
                    tracing::warn!(
                        why,
                        "stopping without a hand-over: another daemon leads after {takeover:?}"
                    );
                    return Ok(());
                }
            }
        }
    }

    fn replica_config(&self) -> ReplicaConfig {
        let takeover = u64::try_from(self.store.takeover.as_millis()).unwrap_or(u64::MAX);
        ReplicaConfig { takeover, ring: RING, url: self.store.advertise.clone() }
    }

    /// Has etcd execute an operation. One without an answer is sent again until there is one. While
    /// etcd refuses, `stuck` may find out what became of it by reading.
    async fn execute(
        &self,
        operation: &Operation,
        stuck: impl AsyncFn(&lockkeeper_etcd::Error) -> Option<Reply>,
    ) -> Result<Reply, Error> {
        loop {
            let answer = match operation {
                Operation::Write { guard, head, entry, snapshot, deletes } => {
                    let entry = entry.iter().map(|(slot, bytes)| (self.keys.entry(*slot), bytes.clone()));
                    let snapshot = snapshot.iter().map(|pointer| (self.keys.snapshot(), pointer.clone()));
                    let head = (self.keys.head(), head.encode());
                    let guard = guard.as_ref().map(|(head, revision)| (head.encode(), *revision));
                    // The head last: who watches has the entry when it sees the head.
                    let puts = entry.chain(snapshot).chain([head]).collect();
                    let deletes = deletes.iter().map(|places| self.keys.entries(places)).collect();
                    let writes = Guarded { key: self.keys.head(), guard, puts, deletes };
                    self.etcd.write(writes).await.map(|outcome| match outcome {
                        Outcome::Done(revision) => Ok(Reply::Done(revision)),
                        Outcome::Refused(kv) => keys::head(kv).map(Reply::Seen),
                    })
                }
                Operation::Read => {
                    self.etcd.get(&self.keys.head()).await.map(|(kv, _)| keys::head(kv).map(Reply::Seen))
                }
            };
            if !matches!(answer, Err(lockkeeper_etcd::Error::NoAnswer { .. })) {
                self.answered.set(Instant::now());
                *self.silence.borrow_mut() = None;
            }
            match answer {
                Ok(reply) => {
                    self.complained.set(None);
                    return reply;
                }
                Err(error) => {
                    self.complain(&error);
                    match error {
                        lockkeeper_etcd::Error::NoAnswer { member, why } => {
                            self.note_silence(member, why);
                            tokio::time::sleep(PAUSE / 5).await;
                        }
                        // It may have room again, or other rules.
                        error => {
                            if let Some(reply) = stuck(&error).await {
                                return Ok(reply);
                            }
                        }
                    }
                }
            }
        }
    }

    fn note_silence(&self, member: String, why: String) {
        self.silence.borrow_mut().get_or_insert_with(Silence::new).tried.insert(member, why);
    }

    /// The head as it is, if etcd answers.
    async fn read_head(&self) -> Option<Option<(Head, Revision)>> {
        let (head, _) = self.etcd.get(&self.keys.head()).await.ok()?;
        keys::head(head).ok()
    }

    /// Says now and then what is wrong.
    fn complain(&self, error: &lockkeeper_etcd::Error) {
        if self.complained.get().is_none_or(|when| when.elapsed() > COMPLAIN) {
            tracing::warn!(%error, "etcd");
            self.complained.set(Some(Instant::now()));
        }
    }

    /// The head was seen. One that has less than was known means that the store was restored from a
    /// backup.
    fn see(&self, seen: Option<&(Head, Revision)>) -> Result<(), Error> {
        self.memory.borrow_mut().saw(seen).map_err(|astray| went_astray(astray, self.store.accept_restored))
    }

    /// How this daemon takes over, if it has to accept a store that was restored.
    fn recovery(&self, state: &State, replica: &Replica) -> Option<Recovery> {
        let longest = daemon::ttl_of(&self.config).max;
        self.memory.borrow().recovery(replica, state.last_token(), clock::wall(), longest)
    }

    /// Has the next daemon of this state directory know the position, too.
    async fn remember(&self) {
        let known = self.memory.borrow().known();
        if self.remembered.replace(Some(known)) == Some(known) {
            return;
        }
        let path = self.known_path.clone();
        // A sync can take a tenth of a second: clients do not wait for it.
        let written = tokio::task::spawn_blocking(move || write_extent(&path, known)).await;
        if let Err(error) = written.unwrap_or_else(|error| Err(io::Error::other(error))) {
            tracing::warn!(%error, "{}", self.known_path.display());
        }
    }

    /// Tells clients' connections what is known of the leader.
    fn notify_node(
        &self,
        node: &Node,
        (state, replica): (&Rc<RefCell<State>>, &Replica),
        trouble: Option<String>,
    ) {
        let led = |head: &Head| !head.vacant;
        let leader = replica.head().filter(|head| led(head));
        let leader = leader.map(|head| Leader { url: head.url.clone(), owner: head.owner });
        let (position, lag) = (replica.position(), replica.lag());
        let state = Rc::downgrade(state);
        node.set_role(Role::Following(Following { leader, position, lag, trouble, state }));
    }
}

/// The position, and the number of the last recovery if there was one.
fn read_extent(text: &str) -> Option<Extent> {
    let (position, recovery) = text.trim().split_once(' ').unwrap_or((text.trim(), "0"));
    Some(Extent { position: position.parse().ok()?, recovery: recovery.parse().ok()? })
}

/// Writes the position to a file that has an earlier one. The file is synced before it takes that
/// one's place: else a crash of the machine could leave an empty file, and the next daemon would
/// refuse to start. Its folder is not: if the crash undoes the renaming, the earlier position is
/// there. It is some seconds old anyway, and all that it has to show is a store that went back
/// further than that.
fn write_extent(path: &Path, Extent { recovery, position }: Extent) -> io::Result<()> {
    let text = match recovery {
        0 => position.to_string(),
        _ => format!("{position} {recovery}"),
    };
    let new = path.with_extension("new");
    let mut file = fs::File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(new, path)
}

/// The head was deleted by hand: the length of the log is unknown.
fn head_is_gone(keys: &Keys) -> Error {
    let (head, log) = (keys.head(), keys.log());
    let (head, log) = (String::from_utf8_lossy(&head), String::from_utf8_lossy(&log));
    Error::Fleet(format!(
        "the head of the log, {head}, was deleted from etcd: the locks are no longer known. Stop every daemon, delete \
         what is left (etcdctl del --prefix {log}), then start them with --accept-restored-store: earlier sessions end, and \
         nothing is granted until the longest lease has expired"
    ))
}

/// The store cannot be followed. `accepts` says that this daemon was to accept one that was
/// restored.
fn went_astray(astray: Astray, accepts: bool) -> Error {
    let what = match astray {
        Astray::WentBack { known, found } => format!("the store has {found} entries, and had {known} before"),
        Astray::Recovered => "the store was replaced while this daemon ran".into(),
    };
    let why = match accepts {
        true => "the leader was started without --accept-restored-store, or the store was restored once more",
        false => "it was restored from a backup, or emptied",
    };
    Error::Fleet(format!(
        "{what}: {why}. Locks that were granted since are missing from it. Stop every daemon, then start them with \
         --accept-restored-store: earlier sessions end, and nothing is granted until the longest lease has expired"
    ))
}
