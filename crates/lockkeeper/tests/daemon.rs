//! What only a daemon has: processes, restarts, an end. That it is otherwise like a manager of this
//! process is shown by `spec_daemon`, `forms_daemon` and `executors_daemon`.
#![cfg(feature = "connect")]

mod common;

use common::{connect, daemon::Daemon, step, url};
#[cfg(feature = "network")]
use lockkeeper::Cause;
use lockkeeper::{AbortController, Error, Lock, Locks};
use smol::future;
use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::{BufRead, BufReader, Read, Write, stdin},
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    pin::pin,
    process::{self, Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Wake, Waker},
    thread,
    time::Duration,
};

mod connecting {
    use super::*;

    #[test]
    fn where_nobody_listens_the_error_says_where_and_what_to_start() {
        let dir = Dir::new("nobody");
        let socket = dir.0.join("daemon.sock");
        let refused = Locks::connect(format!("unix:{}", socket.display())).blocking();
        let Err(error @ Error::Unreachable(_)) = refused else { panic!("{refused:?}") };
        let advice = format!("`lockkeeper serve --socket {}`", socket.display());
        assert!(error.to_string().contains(&advice), "{error}");
        assert_eq!(error.name(), "NetworkError");
    }

    #[test]
    fn a_url_that_is_none_is_an_error() {
        let refused = future::block_on(async { Locks::connect("http://example.com").await });
        assert!(matches!(refused, Err(Error::Unreachable(words)) if words.contains("http://example.com")));
    }

    #[test]
    fn a_daemon_of_another_version_says_which_side_to_upgrade() {
        let dir = Dir::new("version");
        let socket = dir.0.join("daemon.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let daemon = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            hear(&mut stream);
            // Goodbye, of code 18.
            stream.write_all(b"\0\0\0\x16\x93\x0f\x12\xb2upgrade the client").unwrap();
        });
        let refused = Locks::connect(format!("unix:{}", socket.display())).blocking();
        let Err(Error::Refused { code: 18, message }) = refused else { panic!("{refused:?}") };
        assert_eq!(message, "upgrade the client");
        daemon.join().unwrap();
    }

    #[test]
    fn buckets_share_nothing_and_must_have_a_name_that_can_be_one() {
        let daemon = Daemon::start();
        let ours = connect(&daemon);
        let theirs = Locks::connect(url(&daemon)).bucket("theirs").blocking().unwrap();
        let _lock = ours.acquire_blocking("a").unwrap();
        assert!(connect(&daemon).try_acquire("a").unwrap().is_none(), "the same bucket");
        assert!(theirs.try_acquire("a").unwrap().is_some());
        let refused = Locks::connect(url(&daemon)).bucket("a\tb").blocking();
        assert!(matches!(refused, Err(Error::Refused { code: 1, .. })), "{refused:?}");
    }

    #[cfg(feature = "network")]
    #[test]
    fn a_session_over_the_network_has_the_same_locks() {
        let daemon = Daemon::on_network();
        let near = connect(&daemon);
        let far = Locks::connect(format!("ws://{}", daemon.address())).blocking().unwrap();
        future::block_on(async {
            let lock = near.acquire("a").await.unwrap();
            assert!(far.request("a").if_available().acquire().await.unwrap().is_none());
            let mut waiting = pin!(far.acquire("a"));
            assert!(step(&far, waiting.as_mut()).await.is_none());
            lock.release().unwrap();
            assert_eq!(waiting.await.unwrap().client_id(), far.client_id());
        });
    }

    #[cfg(feature = "network")]
    #[test]
    fn with_tls_and_keys_it_takes_trust_and_a_token() {
        use lockkeeper_server::{Permit, new_keys, sign};
        let dir = Dir::new("tls");
        let file = |name: &str, text: &str| {
            let path = dir.0.join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let certified = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let (cert, key) = (certified.cert.pem(), certified.signing_key.serialize_pem());
        let (cert, keys) = (file("cert.pem", &cert), new_keys());
        let daemon = Daemon::on_network_with(|config| {
            let listen = config.listen.as_mut().unwrap();
            listen.tls = Some((cert.clone(), file("key.pem", &key)));
            listen.keys = Some(file("keys.json", &keys));
        });
        drop(daemon.connect());
        let permit = Permit { buckets: vec!["default".into()], ..Permit::default() };
        let token = sign(&keys, permit, Duration::from_secs(60)).unwrap();
        let url = format!("wss://localhost:{}", daemon.address().port());
        let connects = |ca: &PathBuf, token: &str| {
            let settings =
                [("URL", url.clone().into()), ("TOKEN", token.into()), ("LOCKKEEPER_CA", ca.into())];
            Process::start("connects_with_a_token", settings).says()
        };
        assert_eq!(connects(&cert, &token), "mine");
        let refused = connects(&cert, "nobody's");
        assert!(refused.contains("the token is malformed"), "{refused}");
        let other = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let refused = connects(&file("other.pem", &other.cert.pem()), &token);
        assert!(refused.contains("certificate"), "{refused}");
    }

    #[test]
    fn a_limit_of_the_daemons_refuses_and_changes_nothing() {
        let daemon = Daemon::start_with(|config| config.limits.requests_per_client = 1);
        let locks = connect(&daemon);
        let _held = locks.acquire_blocking("a").unwrap();
        let Err(error @ Error::Refused { code: 2, .. }) = locks.acquire_blocking("b") else {
            panic!("not refused")
        };
        assert_eq!(error.name(), "QuotaExceededError");
        assert_eq!(locks.query_blocking().unwrap().held.len(), 1);
    }
}

mod requests {
    use super::*;

    #[test]
    fn what_is_too_long_for_a_message_is_refused_and_the_session_goes_on() {
        let daemon = Daemon::start();
        let locks = connect(&daemon);
        let _held = locks.acquire_blocking("a").unwrap();
        let names: Vec<String> = (0..20).map(|number| format!("{number:060000}")).collect();
        let refused = locks.request(names.iter().map(String::as_str).collect::<Vec<_>>()).acquire_blocking();
        assert!(matches!(refused, Err(Error::Refused { code: 2, .. })), "{refused:?}");
        let refused = locks.force_release_blocking("n".repeat(2 << 20).as_str());
        assert!(matches!(refused, Err(Error::Refused { code: 2, .. })), "{refused:?}");
        assert_eq!(locks.query_blocking().unwrap().held.len(), 1, "of the same session");
    }

    #[test]
    fn a_deadlock_is_reported_once_for_each_request_that_waits_in_it() {
        let daemon = Daemon::start();
        drop(daemon.connect());
        let (report, reported) = mpsc::channel();
        let locks =
            Locks::connect(url(&daemon)).on_deadlock(move |found| report.send(found.clone()).unwrap());
        let locks = locks.blocking().unwrap();
        future::block_on(async {
            let a = locks.acquire("a").await.unwrap();
            let b = locks.acquire("b").await.unwrap();
            let mut waiting = pin!(future::zip(a.request("b").acquire(), b.request("a").acquire()));
            // Both wait for ever; the reports end the test.
            let mut heard = pin!(smol::unblock(move || [reported.recv().unwrap(), reported.recv().unwrap()]));
            let found = future::or(async { Some(heard.as_mut().await) }, async {
                drop(waiting.as_mut().await);
                None
            });
            let found = found.await.expect("a deadlock does not end");
            assert!(found.iter().all(|deadlock| deadlock.cycle.len() == 4), "{found:?}");
            let me = locks.client_id();
            assert!(
                found.iter().flat_map(|deadlock| &deadlock.cycle).all(|step| step.client == me),
                "{found:?}"
            );
        });
    }

    #[test]
    fn a_future_dropped_before_the_daemon_has_answered_leaves_nothing_behind() {
        let daemon = Daemon::start();
        let locks = connect(&daemon);
        future::block_on(async {
            for _ in 0..100 {
                assert!(future::poll_once(locks.acquire("a")).await.is_none(), "no answer is that quick");
            }
            let snapshot = locks.query().await.unwrap();
            assert!(snapshot.held.is_empty() && snapshot.pending.is_empty());
        });
    }

    /// With a daemon that takes its time.
    #[test]
    fn the_value_of_run_comes_when_the_daemon_has_said_that_the_lock_is_released() {
        let dir = Dir::new("slow");
        let socket = dir.0.join("daemon.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let ((asked, asks), (go, goes)) = (mpsc::channel(), mpsc::channel());
        let daemon = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            hear(&mut stream);
            let welcome = b"\0\0\0\x2b\x99\0\x02\0\x01\xb00123456789abcdef\xc4\x100123456789abcdef\0\xc2\0";
            stream.write_all(welcome).unwrap();
            let synced = b"\0\0\0\x02\x91\x02";
            stream.write_all(synced).unwrap();
            hear(&mut stream);
            let granted = b"\0\0\0\x04\x93\x03\x01\x2a";
            stream.write_all(granted).unwrap();
            hear(&mut stream);
            asked.send(()).unwrap();
            goes.recv().unwrap();
            let released = b"\0\0\0\x03\x92\x06\x01";
            stream.write_all(released).unwrap();
            goes.recv().unwrap();
        });
        future::block_on(async {
            let locks = Locks::connect(format!("unix:{}", socket.display())).await.unwrap();
            let mut running = pin!(locks.request("a").run(async |lock| lock.token().get()));
            let early = async { Some(running.as_mut().await) };
            let asked = async { smol::unblock(move || asks.recv().unwrap()).await };
            let early = future::or(early, async {
                asked.await;
                None
            });
            assert!(early.await.is_none(), "the daemon has not answered yet");
            go.send(()).unwrap();
            assert_eq!(running.await.unwrap(), 42);
            go.send(()).unwrap();
        });
        daemon.join().unwrap();
    }

    #[test]
    fn a_lock_stolen_by_another_session_ends_the_closure() {
        let daemon = Daemon::start();
        let (locks, thief) = (connect(&daemon), connect(&daemon));
        future::block_on(async {
            let mut running = pin!(locks.request("a").run(async |_| future::pending::<()>().await));
            assert!(step(&locks, running.as_mut()).await.is_none());
            let stolen = thief.request("a").steal().acquire().await.unwrap();
            assert!(matches!(running.await, Err(Error::Stolen)));
            stolen.release().unwrap();
        });
    }

    /// One of them hears the daemon for all.
    #[test]
    fn threads_that_wait_on_one_session_are_all_served() {
        let daemon = Daemon::start();
        let (locks, other) = (connect(&daemon), connect(&daemon));
        let held = other.acquire_blocking("a").unwrap();
        let (sender, served) = mpsc::channel();
        thread::scope(|scope| {
            for number in 0..8 {
                let (locks, sender) = (&locks, sender.clone());
                scope.spawn(move || {
                    for _ in 0..100 {
                        drop(locks.acquire_blocking("a").unwrap());
                        drop(locks.acquire_blocking(&*format!("b{number}")).unwrap());
                    }
                    sender.send(number).unwrap();
                });
            }
            while locks.query_blocking().unwrap().pending.len() < 8 {}
            // Neither other threads nor tasks of the session are kept waiting by those.
            drop(locks.acquire_blocking("c").unwrap());
            future::block_on(async { locks.request("c").run(async |_| ()).await }).unwrap();
            assert!(served.try_recv().is_err());
            held.release().unwrap();
            let mut served: Vec<i32> = served.iter().take(8).collect();
            served.sort_unstable();
            assert_eq!(served, [0, 1, 2, 3, 4, 5, 6, 7]);
        });
    }

    #[test]
    fn a_thread_that_waits_hears_what_else_ends_its_waiting() {
        let daemon = Daemon::start();
        let (locks, other) = (connect(&daemon), connect(&daemon));
        let _held = other.acquire_blocking("a").unwrap();
        let late = locks.request("a").timeout(Duration::from_millis(20)).acquire_blocking();
        assert!(matches!(late, Err(Error::TimedOut)), "{late:?}");
        let controller = AbortController::new();
        thread::scope(|scope| {
            let signal = controller.signal();
            let waits = scope.spawn(|| locks.request("a").signal(signal).acquire_blocking().map(drop));
            while locks.query_blocking().unwrap().pending.is_empty() {}
            controller.abort("enough");
            assert!(matches!(waits.join().unwrap(), Err(Error::Aborted(_))));
        });
    }

    /// A task that has asked is not polled again to spin for the answer: others need its thread.
    #[test]
    fn a_task_that_waits_is_woken_by_its_grant_and_nothing_else() {
        #[derive(Default)]
        struct Count(AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }

        let daemon = Daemon::start();
        let locks = connect(&daemon);
        let held = locks.acquire_blocking("a").unwrap();
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut waiting = pin!(locks.acquire("a"));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        // The daemon answers in order: it has said by now that the request waits.
        assert_eq!(future::block_on(locks.query()).unwrap().pending.len(), 1);
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
        held.release().unwrap();
        future::block_on(waiting).unwrap();
    }

    #[test]
    fn inspect_shows_whose_process_it_is() {
        let daemon = Daemon::start();
        let locks = connect(&daemon);
        let _lock = locks.acquire_blocking("a").unwrap();
        let owner = locks.inspect_blocking().unwrap().held[0].owner.clone().unwrap();
        assert!(owner.starts_with(&format!("pid {} ", process::id())), "{owner}");
    }
}

mod restarts {
    use super::*;

    fn outlived_by_locks_and_queues(restart: impl FnOnce(&mut Daemon)) -> Result<(), Error> {
        let mut daemon = Daemon::start();
        let (locks, other) = (connect(&daemon), connect(&daemon));
        future::block_on(async {
            let lock = locks.acquire("a").await?;
            let mut next = pin!(other.acquire("a"));
            assert!(step(&other, next.as_mut()).await.is_none());
            restart(&mut daemon);
            let inspection = locks.inspect().await?;
            assert_eq!(inspection.held[0].token, Some(lock.token()));
            assert_eq!(inspection.pending[0].client_id, other.client_id());
            assert!(step(&locks, pin!(lock.lost())).await.is_none(), "it is still held");
            assert!(step(&other, next.as_mut()).await.is_none(), "it still waits");
            lock.release()?;
            next.await?.release()
        })
    }

    #[test]
    fn locks_and_places_in_queues_outlive_a_daemon_that_is_killed() -> Result<(), Error> {
        outlived_by_locks_and_queues(|daemon| {
            daemon.kill();
            daemon.run();
        })
    }

    #[test]
    fn locks_and_places_in_queues_outlive_a_daemon_that_stops_in_good_order() -> Result<(), Error> {
        outlived_by_locks_and_queues(|daemon| {
            daemon.stop();
            daemon.run();
        })
    }

    #[test]
    fn a_thread_that_waits_goes_on_at_the_next_daemon() {
        let mut daemon = Daemon::start();
        let (locks, other) = (connect(&daemon), connect(&daemon));
        for _ in 0..10 {
            let held = other.acquire_blocking("a").unwrap();
            thread::scope(|scope| {
                let waits = scope.spawn(|| locks.acquire_blocking("a").and_then(Lock::release));
                while other.query_blocking().unwrap().pending.is_empty() {}
                daemon.kill();
                daemon.run();
                held.release().unwrap();
                waits.join().unwrap().unwrap();
            });
        }
    }

    #[test]
    fn without_a_daemon_requests_time_out_and_questions_wait_for_the_next_one() {
        let mut daemon = Daemon::start();
        let locks = connect(&daemon);
        daemon.kill();
        future::block_on(async {
            let late = locks.request("a").timeout(Duration::from_millis(5)).acquire().await;
            assert!(matches!(late, Err(Error::TimedOut)));
            let mut asked = pin!(future::zip(locks.query(), locks.force_release("a")));
            assert!(future::poll_once(asked.as_mut()).await.is_none());
            daemon.run();
            let (snapshot, released) = asked.await;
            assert!(snapshot.unwrap().held.is_empty());
            released.unwrap();
        });
    }

    #[cfg(feature = "network")]
    fn far(ttl: Duration) -> (Daemon, Locks) {
        let daemon = Daemon::on_network_with(|config| config.ttl = ttl);
        drop(daemon.connect());
        let locks =
            Locks::connect(format!("ws://{}", daemon.address())).blocking().expect("a daemon listens");
        (daemon, locks)
    }

    #[cfg(feature = "network")]
    #[test]
    fn a_thread_that_waits_is_told_that_no_daemon_comes_back() {
        let (mut daemon, locks) = far(Duration::from_secs(1));
        let other = locks.client_blocking().unwrap();
        let _held = other.acquire_blocking("a").unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| locks.acquire_blocking("a").map(drop));
            while other.query_blocking().unwrap().pending.is_empty() {}
            daemon.kill();
            assert!(matches!(waits.join().unwrap(), Err(Error::Lost)));
        });
    }

    #[cfg(feature = "network")]
    #[test]
    fn where_no_daemon_comes_back_in_time_all_is_lost_and_the_handle_opens_the_next_session() {
        let (mut daemon, locks) = far(Duration::from_secs(1));
        future::block_on(async {
            let lock = locks.acquire("a").await.unwrap();
            let mut waiting = pin!(locks.acquire("a"));
            assert!(step(&locks, waiting.as_mut()).await.is_none());
            let mut running = pin!(locks.request("b").run(async |_| future::pending::<()>().await));
            assert!(step(&locks, running.as_mut()).await.is_none());
            assert!(lock.is_held());
            let before = locks.client_id();
            daemon.kill();
            assert_eq!(lock.lost().await, Cause::Lost);
            assert!(!lock.is_held());
            assert_eq!(lock.name(), "a", "it is known what was lost");
            assert!(matches!(lock.release(), Err(Error::Lost)));
            assert!(matches!(waiting.await, Err(Error::Lost)));
            assert!(matches!(running.await, Err(Error::Lost)));
            assert!(matches!(locks.client().await, Err(Error::Unreachable(_))));
            let mut next = pin!(locks.acquire("c"));
            assert!(future::poll_once(next.as_mut()).await.is_none());
            daemon.run();
            let next = next.await.unwrap();
            assert_ne!(next.client_id(), before);
            locks.acquire("a").await.unwrap();
        });
    }
}

/// Other processes are this test program, told to run one of the tests in [`parts`] only.
mod processes {
    use super::*;

    #[test]
    fn a_process_waits_for_another_and_is_let_in_when_that_is_killed() {
        let daemon = Daemon::start();
        let locks = connect(&daemon);
        let mut other =
            Process::start("holds_a_until_it_is_killed", [("LOCKKEEPER_URL", url(&daemon).into())]);
        assert_eq!(other.says(), "held");
        future::block_on(async {
            let mut waiting = pin!(locks.acquire("a"));
            assert!(step(&locks, waiting.as_mut()).await.is_none());
            let owner = locks.inspect().await.unwrap().held[0].owner.clone().unwrap();
            assert!(owner.starts_with(&format!("pid {} ", other.0.id())), "{owner}");
            drop(other);
            waiting.await.unwrap();
        });
    }

    #[test]
    fn without_the_program_the_error_says_what_to_install() {
        let dir = Dir::new("no-program");
        let settings = [("PATH", OsString::new()), ("LOCKKEEPER_DIR", dir.0.clone().into())];
        let words = Process::start("connects", settings).says();
        assert!(words.contains("cargo install --path crates/cli"), "{words}");
    }

    #[test]
    fn the_machines_daemon_is_started_by_systemd() {
        // Unless it runs here.
        if UnixStream::connect("/run/lockkeeper/machine.sock").is_err() {
            let words = Process::start("connects", [("LOCKKEEPER_URL", "machine".into())]).says();
            assert!(words.contains("systemctl enable --now lockkeeper-machine.socket"), "{words}");
        }
    }

    #[test]
    fn the_environment_names_the_bucket() {
        let daemon = Daemon::start();
        drop(daemon.connect());
        let jobs = Locks::connect(url(&daemon)).bucket("jobs").blocking().unwrap();
        let _lock = jobs.acquire_blocking("a").unwrap();
        for (bucket, said) in [("jobs", "taken"), ("others", "free"), ("", "free")] {
            let settings = [("LOCKKEEPER_URL", url(&daemon).into()), ("LOCKKEEPER_BUCKET", bucket.into())];
            assert_eq!(Process::start("connects", settings).says(), said, "{bucket}");
        }
        // Not the default one.
        for variable in ["LOCKKEEPER_BUCKET", "LOCKKEEPER_URL"] {
            let settings =
                [("LOCKKEEPER_URL", url(&daemon).into()), (variable, OsStr::from_bytes(b"\xff").into())];
            let said = Process::start("connects", settings).says();
            assert!(said.contains(&format!("{variable} is not UTF-8")), "{said}");
        }
    }

    #[cfg(feature = "network")]
    #[test]
    fn the_environment_names_the_file_of_the_token() {
        use lockkeeper_server::{Permit, new_keys, sign};
        let (dir, keys) = (Dir::new("token"), new_keys());
        let file = |name: &str, text: &str| {
            let path = dir.0.join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let daemon = Daemon::on_network_with(|config| {
            config.listen.as_mut().unwrap().keys = Some(file("keys.json", &keys));
        });
        drop(daemon.connect());
        let token_for = |bucket: &str, expires| {
            let permit = Permit { buckets: vec![bucket.into()], ..Permit::default() };
            // A file ends with the end of its line.
            file(bucket, &(sign(&keys, permit, expires).unwrap() + "\n"))
        };
        let token = |bucket| token_for(bucket, Duration::from_secs(60));
        let connects = |token: PathBuf| {
            let url = format!("ws://{}", daemon.address());
            let token = ("LOCKKEEPER_TOKEN_FILE", token.into());
            Process::start("connects", [("LOCKKEEPER_URL", url.into()), token]).says()
        };
        assert_eq!(connects(token("default")), "free");
        assert!(connects(token("jobs")).contains("bucket"), "it is for another bucket");
        let words = connects(token_for("default", Duration::ZERO));
        assert!(words.contains("the token has expired: get a new one"), "{words}");
        let missing = dir.0.join("missing");
        let words = connects(missing.clone());
        assert!(words.contains(missing.to_str().unwrap()), "{words}");
    }

    /// A program of that name on the `PATH`, which is this one.
    #[test]
    fn the_program_on_the_path_is_started_as_the_daemon() {
        let dir = Dir::new("program");
        let path = dir.0.join("bin");
        let program = path.join("lockkeeper");
        fs::create_dir(&path).unwrap();
        let this = env::current_exe().unwrap();
        let script = format!(
            "#!/bin/sh\nSERVE=\"$*\" exec '{}' --exact --ignored parts::serves --nocapture\n",
            this.display()
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let settings = || [("PATH", path.clone().into()), ("LOCKKEEPER_DIR", dir.0.clone().into())];
        let mut first = Process::start("holds_a_until_it_is_killed", settings());
        assert_eq!(first.says(), "held");
        assert_eq!(Process::start("connects", settings()).says(), "taken", "it found the same daemon");
        drop(first);
        // The daemon exits once it is idle.
        let socket = dir.0.join("daemon.sock");
        while UnixStream::connect(&socket).is_ok() {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

mod parts {
    use super::*;

    #[test]
    #[ignore = "a part of other tests, in a process of its own"]
    fn holds_a_until_it_is_killed() {
        let locks = Locks::connect_default().blocking().unwrap();
        let _lock = locks.acquire_blocking("a").unwrap();
        println!("\n> held");
        let _ = stdin().read(&mut [0]);
    }

    #[test]
    #[ignore = "a part of other tests, in a process of its own"]
    fn connects() {
        let taken =
            Locks::connect_default().blocking().and_then(|locks| Ok(locks.try_acquire("a")?.is_none()));
        match taken {
            Ok(true) => println!("\n> taken"),
            Ok(false) => println!("\n> free"),
            Err(error) => println!("\n> {error}"),
        }
    }

    #[cfg(feature = "network")]
    #[test]
    #[ignore = "a part of other tests, in a process of its own"]
    fn connects_with_a_token() {
        let [Ok(url), Ok(token)] = ["URL", "TOKEN"].map(env::var) else { return };
        let lock = Locks::connect(url)
            .token(token)
            .blocking()
            .and_then(|locks| locks.acquire_blocking("a").map(drop));
        println!("\n> {}", lock.map_or_else(|error| error.to_string(), |()| "mine".into()));
    }

    #[test]
    #[ignore = "a part of other tests, in a process of its own"]
    fn serves() {
        let Ok(call) = env::var("SERVE") else { return };
        let socket = PathBuf::from(call.strip_prefix("serve --background --socket ").unwrap());
        let config = lockkeeper_server::Config {
            store: None,
            state_dir: socket.with_file_name("state"),
            socket,
            given: None,
            listen: None,
            sync: false,
            ttl: Duration::from_secs(10),
            allow: Vec::new(),
            ttl_bounds: (Duration::from_secs(1), Duration::from_secs(60)),
            idle: Some(Duration::from_millis(100)),
            limits: Default::default(),
            bytes: lockkeeper_server::Bytes::default(),
            handshake: lockkeeper_server::HandshakeLimits::default(),
            metrics: None,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, lockkeeper_server::serve(config, std::future::pending())).unwrap();
    }
}

/// Reads a message.
fn hear(stream: &mut UnixStream) {
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("a message comes");
    let mut message = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut message).expect("it comes whole");
}

/// A process of this test's, killed when it is dropped.
struct Process(Child);

impl Process {
    fn start<const N: usize>(part: &str, settings: [(&str, OsString); N]) -> Self {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args(["--exact", "--ignored", "--nocapture", &format!("parts::{part}")]);
        command.env_remove("LOCKKEEPER_URL").envs(settings);
        Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts"))
    }

    /// What it says next.
    fn says(&mut self) -> String {
        let lines = BufReader::new(self.0.stdout.as_mut().expect("it is piped")).lines();
        let said = lines.map(Result::unwrap).find_map(|line| line.strip_prefix("> ").map(String::from));
        said.expect("it says something")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory of a test's own.
struct Dir(PathBuf);

impl Dir {
    fn new(test: &str) -> Self {
        let dir = env::temp_dir().join(format!("lockkeeper-connect-{}-{test}", process::id()));
        fs::DirBuilder::new().mode(0o700).create(&dir).expect("a directory for the test");
        Self(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
