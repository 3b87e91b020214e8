//! A daemon on a thread of the test's, with a directory of its own.

use super::members;
use lockkeeper_core::Limits;
use lockkeeper_server::{Bytes, Config, HandshakeLimits, Listen, Store, serve};
use lockkeeper_testing::{Cluster, Folder};
use std::{
    future::pending,
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};
use tokio::{runtime, sync::oneshot, task::LocalSet};

pub(crate) struct Daemon {
    dir: Folder,
    pub(crate) config: Config,
    running: Option<Running>,
    /// Those with which it shares a log.
    others: Vec<Self>,
}

struct Running {
    stop: oneshot::Sender<()>,
    kill: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Daemon {
    pub(crate) fn start() -> Self {
        Self::start_with(|_| {})
    }

    /// Starts it with a port on the loopback too.
    pub(crate) fn on_network() -> Self {
        Self::on_network_with(|_| {})
    }

    pub(crate) fn on_network_with(change: impl FnOnce(&mut Config)) -> Self {
        // Opened here once, so that it stays the same across restarts of the daemon, and no other
        // process takes it in between.
        let port = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = port.local_addr().expect("it has an address");
        Self::start_with(|config| {
            // Tests have clients of both kinds, and compare what they see.
            let (given, share_buckets) = (Some(Arc::new(port)), true);
            config.listen = Some(Listen { given, share_buckets, ..Listen::at(address) });
            change(config);
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listen().address
    }

    pub(crate) fn listen(&self) -> &Listen {
        self.config.listen.as_ref().expect("it is on the network")
    }

    /// A file in its directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts it as one of three that share a log, and not the one that leads.
    pub(crate) fn in_fleet() -> Self {
        static CLUSTER: OnceLock<Cluster> = OnceLock::new();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let cluster = CLUSTER.get_or_init(|| Cluster::start(members()).expect("etcd is installed"));
        let store = cluster.url(&COUNT.fetch_add(1, Ordering::Relaxed).to_string());
        let join = || {
            Self::on_network_with(|config| {
                let advertise = format!("ws://{}", config.listen.as_ref().expect("it has a port").address);
                let etcd = store.parse().expect("it is a store");
                let takeover = Duration::from_secs(2);
                let (own, accept_restored) = (false, false);
                config.store = Some(Store { etcd, advertise, takeover, own, accept_restored });
            })
        };
        let leader = join();
        // It leads before there are others.
        leader.wait_until_served();
        let mut daemon = join();
        daemon.others = vec![leader, join()];
        daemon
    }

    /// Waits until a daemon leads.
    fn wait_until_served(&self) {
        let locks = lockkeeper::Locks::connect(format!("unix:{}", self.config.socket.display()));
        drop(self.connect());
        drop(locks.blocking().expect("it serves"));
    }

    pub(crate) fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let dir = Folder::new("api").expect("a directory for the test");
        let mut config = Config {
            socket: dir.path().join("daemon.sock"),
            given: None,
            listen: None,
            state_dir: dir.path().join("state"),
            // Longer than a test: no lease expires, unless a test wants that.
            ttl: Duration::from_secs(600),
            allow: Vec::new(),
            ttl_bounds: (Duration::from_millis(1), Duration::from_secs(600)),
            sync: false,
            idle: None,
            limits: Limits::default(),
            bytes: Bytes::default(),
            handshake: HandshakeLimits::default(),
            store: None,
            metrics: None,
        };
        change(&mut config);
        let mut daemon = Self { dir, config, running: None, others: Vec::new() };
        daemon.run();
        daemon
    }

    /// Stops it gracefully.
    pub(crate) fn stop(&mut self) {
        let Running { stop, kill, thread } = self.running.take().expect("it runs");
        stop.send(()).expect("it listens");
        thread.join().expect("it leaves in good order");
        drop(kill);
    }

    /// Ends it where it stands, as a signal would: it says no goodbye and writes nothing down.
    pub(crate) fn kill(&mut self) {
        let Some(Running { kill, thread, .. }) = self.running.take() else { return };
        // It may have ended by itself, in a test that has failed already.
        let _ = kill.send(());
        let _ = thread.join();
    }

    /// Starts it again, on what it has left.
    pub(crate) fn run(&mut self) {
        let config = self.config.clone();
        let ((stop, stopped), (kill, killed)) = (oneshot::channel(), oneshot::channel());
        let thread = thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            LocalSet::new().block_on(&runtime, async {
                tokio::select! {
                    served = serve(config, when(stopped)) => served.expect("it serves"),
                    () = when(killed) => {}
                }
            });
        });
        self.running = Some(Running { stop, kill, thread });
    }

    pub(crate) fn connect(&self) -> UnixStream {
        loop {
            match UnixStream::connect(&self.config.socket) {
                Ok(stream) => return stream,
                // It has been started, and is on its way.
                Err(error) => {
                    let thread = self.running.as_ref().map(|running| &running.thread);
                    assert!(thread.is_some_and(|thread| !thread.is_finished()), "no daemon: {error}");
                    thread::yield_now();
                }
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Done when it is told; never if nobody can tell any more.
async fn when(told: oneshot::Receiver<()>) {
    if told.await.is_err() {
        pending().await
    }
}
