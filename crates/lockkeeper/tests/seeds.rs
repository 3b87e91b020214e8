//! The examples of the texts, in Rust: a promise is a future, its rejection an `Err`, a callback
//! the closure of `run`. A test names the text and the line at which its example begins;
//! `packages/lockkeeper/test/seeds.test.js` has them verbatim.
//!
//! * the proto-spec
//! * the explainer, with its three ways to release
//! * the Working Draft of January 2023
//!
//! The two sketches (Origin Flags, and locks with scopes) have no examples; their steps are tested
//! in `forms.rs`.

mod common;

use common::{manager, step};
use lockkeeper::{AbortController, AutoLock, Error, Lock, Locks, Mode};
use smol::{Timer, channel, future};
use std::{
    cell::RefCell,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

/// The modes in which a name is held.
async fn held(locks: &Locks, name: &str) -> Vec<Mode> {
    let held = locks.query().await.expect("it answers").held;
    held.into_iter().filter(|info| info.name == name).map(|info| info.mode).collect()
}

fn is_free(locks: &Locks, name: &str) -> bool {
    locks.try_acquire(name).expect("it answers").is_some()
}

mod proto_spec {
    use super::*;

    /// `p1` is the released promise, `p2` the waiting promise.
    #[test]
    fn line_45() {
        future::block_on(async {
            let locks = manager();
            let (resolve, p2) = channel::bounded(1);
            let mut p1 = pin!(locks.request("resource").run(async |_lock| p2.recv().await.unwrap()));
            assert!(step(&locks, p1.as_mut()).await.is_none());
            assert!(!is_free(&locks, "resource"));
            resolve.send("value").await.unwrap();
            assert_eq!(p1.await.unwrap(), "value");
            assert!(is_free(&locks, "resource"));
        });
    }

    #[test]
    fn line_54() {
        future::block_on(async {
            let locks = manager();
            let p1 = locks.request("resource").run(async |_lock| held(&locks, "resource").await);
            assert_eq!(p1.await.unwrap(), [Mode::Exclusive]);
        });
    }

    /// `void forceRelease(DOMString name)`
    #[test]
    fn line_128() {
        future::block_on(async {
            let locks = manager();
            let lock = locks.acquire("resource").await.unwrap();
            locks.force_release("resource").await.unwrap();
            assert!(held(&locks, "resource").await.is_empty());
            lock.lost().await;
            assert!(matches!(lock.release(), Err(Error::Stolen)));
        });
    }
}

mod explainer {
    use super::*;

    #[test]
    fn line_47() {
        let (locks, db_name, store_name) = (manager(), "db", "store");
        let lock = locks.acquire_blocking(format!("{db_name}/{store_name}")).unwrap();
        assert_eq!(lock.name(), "db/store");
    }

    /// #3 and #6 are granted, #4 waits for #1, #2 and #3, #5 waits for #4.
    #[test]
    fn line_67() {
        future::block_on(async {
            let locks = manager();
            let request = |scope: &'static [&str], mode| Box::pin(locks.request(scope).mode(mode).acquire());
            let first = request(&["a"], Mode::Exclusive).await.unwrap();
            let second = request(&["b"], Mode::Shared).await.unwrap();
            let mut third = request(&["b"], Mode::Shared);
            let mut fourth = request(&["a", "b"], Mode::Exclusive);
            let mut fifth = request(&["b"], Mode::Shared);
            let mut sixth = request(&["c"], Mode::Exclusive);
            let third = step(&locks, third.as_mut()).await.expect("granted immediately").unwrap();
            assert!(step(&locks, fourth.as_mut()).await.is_none());
            assert!(step(&locks, fifth.as_mut()).await.is_none(), "blocked by #4, which is before it");
            step(&locks, sixth.as_mut()).await.expect("granted immediately").unwrap();
            for lock in [first, second, third] {
                assert!(step(&locks, fourth.as_mut()).await.is_none());
                lock.release().unwrap();
            }
            let fourth = fourth.await.unwrap();
            assert!(step(&locks, fifth.as_mut()).await.is_none());
            fourth.release().unwrap();
            fifth.await.unwrap();
        });
    }

    /// Proposal 1: auto-releasing with `wait_until`.
    #[test]
    fn line_90() {
        future::block_on(async {
            let locks = manager();
            let get_lock_then_write = async {
                let lock = locks.request("resource").auto_release().await?;
                lock.wait_until(async { assert_eq!(held(&locks, "resource").await, [Mode::Exclusive]) })?
                    .await;
                Ok::<(), Error>(())
            };
            let get_lock_then_read = async {
                let lock = locks.request("resource").shared().auto_release().await?;
                lock.wait_until(async { assert_eq!(held(&locks, "resource").await, [Mode::Shared]) })?.await;
                Ok::<(), Error>(())
            };
            future::try_zip(get_lock_then_write, get_lock_then_read).await.unwrap();
            assert!(is_free(&locks, "resource"));
        });
    }

    /// Proposal 2: explicit release.
    #[test]
    fn line_103() {
        future::block_on(async {
            let locks = manager();
            let get_lock_then_write = async {
                let lock = locks.request("resource").acquire().await?;
                assert_eq!(held(&locks, "resource").await, [Mode::Exclusive]);
                lock.release()
            };
            let get_lock_then_read = async {
                let lock = locks.request("resource").shared().acquire().await?;
                assert_eq!(held(&locks, "resource").await, [Mode::Shared]);
                lock.release()
            };
            future::try_zip(get_lock_then_write, get_lock_then_read).await.unwrap();
            assert!(is_free(&locks, "resource"));
        });
    }

    /// Proposal 3: scoped release.
    #[test]
    fn line_118() {
        future::block_on(async {
            let locks = manager();
            let read = async |mode| assert_eq!(held(&locks, "resource").await, [mode]);
            let get_lock_then_write =
                locks.request("resource").run(async |_lock| read(Mode::Exclusive).await);
            let get_lock_then_read =
                locks.request("resource").shared().run(async |_lock| read(Mode::Shared).await);
            future::try_zip(get_lock_then_write, get_lock_then_read).await.unwrap();
            assert!(is_free(&locks, "resource"));
        });
    }

    #[test]
    fn line_139() {
        let locks = manager();
        let one = locks.acquire_blocking("thing").unwrap();
        let two = locks.acquire_blocking(["thing1", "thing2"]).unwrap();
        assert_eq!((one.scope().len(), two.scope().len()), (1, 2));
    }

    /// A signal that waits at most 200 ms.
    #[test]
    fn line_152() {
        future::block_on(async {
            let locks = manager();
            let controller = AbortController::new();
            let in_time = locks.request("resource").signal(controller.signal()).run(async |_lock| "done");
            assert_eq!(in_time.await.unwrap(), "done");
            let _held = locks.acquire("resource").await.unwrap();
            let timer = async {
                Timer::after(Duration::from_millis(200)).await; // wait at most 200ms
                controller.abort("200 ms have passed");
            };
            let late = locks.request("resource").signal(controller.signal()).run(async |_lock| "done");
            let (late, ()) = future::zip(late, timer).await;
            assert_eq!(late.unwrap_err().name(), "AbortError");
        });
    }

    /// An explicit lock in terms of another form: what it holds ends with it.
    struct Explicit<T>(T);

    impl<T> Explicit<T> {
        fn release(self) {
            drop(self.0);
        }
    }

    /// Explicit release in terms of auto-release.
    #[test]
    fn line_192() {
        async fn request_explicit_lock(
            locks: &Locks,
            name: &str,
        ) -> Result<Explicit<Pin<Box<dyn Future<Output = ()> + Send>>>, Error> {
            let lock = locks.request(name).auto_release().await?;
            let waits = lock.wait_until(future::pending::<()>())?;
            Ok(Explicit(Box::pin(waits)))
        }

        future::block_on(async {
            let locks = manager();
            let lock = request_explicit_lock(&locks, "resource").await.unwrap();
            assert!(!is_free(&locks, "resource"));
            lock.release();
            assert!(is_free(&locks, "resource"));
        });
    }

    /// Auto-release in terms of explicit release.
    #[test]
    fn line_201() {
        struct Extendable<'a>(RefCell<Option<Arc<Lock<'a>>>>);

        impl<'a> Extendable<'a> {
            async fn request(locks: &'a Locks, name: &'a str) -> Result<Self, Error> {
                Ok(Self(RefCell::new(Some(Arc::new(locks.request(name).acquire().await?)))))
            }

            fn wait_until<T>(&self, p: impl Future<Output = T>) -> impl Future<Output = T> {
                let lock = self.0.borrow().clone();
                async move {
                    let value = p.await;
                    drop(lock);
                    value
                }
            }

            /// The microtask after the one in which the lock was handed out.
            fn end_of_turn(&self) {
                self.0.take();
            }
        }

        future::block_on(async {
            let locks = manager();
            let lock = Extendable::request(&locks, "resource").await.unwrap();
            let write = lock.wait_until(async { 1 });
            lock.end_of_turn();
            assert!(!is_free(&locks, "resource"), "it waits");
            assert_eq!(write.await, 1);
            assert!(is_free(&locks, "resource"));
            Extendable::request(&locks, "resource").await.unwrap().end_of_turn();
            assert!(is_free(&locks, "resource"));
        });
    }

    /// Explicit release in terms of scoped release.
    #[test]
    fn line_232() {
        future::block_on(async {
            let locks = manager();
            let (resolve, granted) = channel::bounded(1);
            let scoped = locks.request("resource").run(async |lock| {
                // Waits until `release` is called: until the sender is gone.
                let (release, p) = channel::bounded::<()>(1);
                resolve.send((lock.token(), Explicit(release))).await.unwrap();
                let _ = p.recv().await;
            });
            let holder = async {
                let (token, lock) = granted.recv().await.unwrap();
                assert_eq!(locks.inspect().await.unwrap().held[0].token, Some(token));
                assert!(!is_free(&locks, "resource"));
                lock.release();
            };
            let (scoped, ()) = future::zip(scoped, holder).await;
            scoped.unwrap();
            assert!(is_free(&locks, "resource"));
        });
    }

    /// Scoped release in terms of explicit release.
    #[test]
    fn line_246() {
        async fn request_scoped_lock<T>(
            locks: &Locks,
            name: &str,
            callback: impl AsyncFnOnce(&Lock<'_>) -> T,
        ) -> Result<T, Error> {
            let lock = locks.request(name).acquire().await?;
            let value = callback(&lock).await;
            lock.release()?; // Dropping it, in the place of `finally`, does the same.
            Ok(value)
        }

        future::block_on(async {
            let locks = manager();
            let inside = request_scoped_lock(&locks, "resource", async |lock| {
                (lock.name().to_string(), is_free(&locks, "resource"))
            });
            assert_eq!(inside.await.unwrap(), ("resource".to_string(), false));
            assert!(is_free(&locks, "resource"));
        });
    }

    /// To wrap a lock around a transaction: `lock.waitUntil(tx.complete)`.
    #[test]
    fn line_267() {
        future::block_on(async {
            let locks = manager();
            let (complete, tx) = channel::bounded::<Result<(), &str>>(1);
            let lock = locks.request("resource").auto_release().await.unwrap();
            let mut transaction = pin!(lock.wait_until(async { tx.recv().await.unwrap() }).unwrap());
            let released = lock.released();
            drop(lock);
            assert!(step(&locks, transaction.as_mut()).await.is_none());
            assert!(!is_free(&locks, "resource"));
            complete.send(Err("aborted")).await.unwrap();
            assert_eq!(transaction.await, Err("aborted"));
            assert!(matches!(released.await, Err(Error::WaitFailed)));
            assert!(is_free(&locks, "resource"));
        });
    }

    /// To wrap a transaction around a lock: `tx.waitUntil(lock.released)`.
    #[test]
    fn line_268() {
        future::block_on(async {
            let locks = manager();
            let lock: AutoLock = locks.request("resource").auto_release().await.unwrap();
            let mut tx = pin!(lock.released());
            let write = lock.wait_until(async {}).unwrap();
            drop(lock);
            assert!(step(&locks, tx.as_mut()).await.is_none());
            write.await;
            tx.await.unwrap();
            assert!(is_free(&locks, "resource"));
        });
    }
}

mod working_draft {
    use super::*;

    /// Example 1.
    #[test]
    fn line_139() {
        future::block_on(async {
            let locks = manager();
            let do_something = async || assert_eq!(held(&locks, "my resource").await, [Mode::Exclusive]);
            // Before requesting the lock.
            assert!(is_free(&locks, "my resource"));
            let request = locks.request("my resource").run(async |_lock| {
                // The lock has been acquired.
                do_something().await;
                // Now the lock will be released.
            });
            request.await.unwrap();
            // After the lock has been released
            assert!(is_free(&locks, "my resource"));
        });
    }

    /// Example 2, whose names the text has lost.
    #[test]
    fn line_183() {
        let (locks, db_name, store_name) = (manager(), "a/b", "c");
        let encoded = format!("{}/{store_name}", db_name.replace('/', "%2F"));
        assert_eq!(locks.acquire_blocking(encoded).unwrap().name(), "a%2Fb/c");
    }

    /// The waiting promise may be implicit.
    #[test]
    fn line_237() {
        future::block_on(async {
            let locks = manager();
            let p2 = async { held(&locks, "resource").await };
            let p1 = locks.request("resource").run(async |_lock| p2.await);
            assert_eq!(p1.await.unwrap(), [Mode::Exclusive]);
            let p1 = locks.request("resource").run(async |lock| lock.name());
            assert_eq!(p1.await.unwrap(), "resource");
        });
    }

    /// Released when the callback exits for any reason. The text has lost the example's code.
    #[test]
    fn line_380() {
        future::block_on(async {
            let locks = manager();
            for outcome in [Ok("returned"), Err("failed")] {
                let result = locks.request("resource").run(async |_lock| outcome).await;
                assert_eq!(result.unwrap(), outcome);
                assert!(is_free(&locks, "resource"));
            }
        });
    }

    /// `options.mode`
    #[test]
    fn line_392() {
        future::block_on(async {
            let locks = manager();
            let _reader = locks.request("resource").shared().acquire().await.unwrap();
            let both = locks.request("resource").shared().run(async |_lock| held(&locks, "resource").await);
            assert_eq!(both.await.unwrap(), [Mode::Shared, Mode::Shared]);
        });
    }

    /// `options.ifAvailable`
    #[test]
    fn line_403() {
        future::block_on(async {
            let locks = manager();
            let attempt = async || {
                let request = locks.request("resource").if_available();
                request.run(async |lock| if lock.is_none() { "didn't get it" } else { "held" }).await.unwrap()
            };
            assert_eq!(attempt().await, "held");
            let _held = locks.acquire("resource").await.unwrap();
            assert_eq!(attempt().await, "didn't get it");
        });
    }

    /// `options.signal`
    #[test]
    fn line_417() {
        future::block_on(async {
            let locks = manager();
            let _held = locks.acquire("resource").await.unwrap();
            let timer = async {
                Timer::after(Duration::from_millis(200)).await; // Wait at most 200ms.
                "200 ms have passed"
            };
            let late = locks.request("resource").signal(timer).run(async |_lock| ()).await;
            assert_eq!(late.unwrap_err().name(), "AbortError");
        });
    }

    /// `query()`
    #[test]
    fn line_464() {
        future::block_on(async {
            let locks = manager();
            let _held = locks.acquire("resource").await.unwrap();
            let mut waits = pin!(locks.request("resource").shared().acquire());
            assert!(step(&locks, waits.as_mut()).await.is_none());
            let state = locks.query().await.unwrap();
            assert_eq!((state.held.len(), state.pending.len()), (1, 1));
            assert_eq!((state.pending[0].mode, state.pending[0].client), (Mode::Shared, locks.client_id()));
        });
    }

    /// Example 3: a deadlock, which a steal undoes.
    #[test]
    fn line_622() {
        future::block_on(async {
            let locks = manager();
            // Each has its first lock before either asks for its second.
            let script = async |first: &'static str, second: &'static str| {
                let request = locks.request(first);
                request
                    .run(async |_| (future::yield_now().await, locks.acquire(second).await.map(drop)))
                    .await
            };
            let (mut script_1, mut script_2) = (pin!(script("A", "B")), pin!(script("B", "A")));
            for _ in 0..2 {
                assert!(future::poll_once(script_1.as_mut()).await.is_none());
                assert!(future::poll_once(script_2.as_mut()).await.is_none());
            }
            let state = locks.query().await.unwrap();
            assert_eq!((state.held.len(), state.pending.len()), (2, 2));
            assert!(is_free(&locks, "C"), "others are not affected");
            locks.request("A").steal().acquire().await.unwrap().release().unwrap();
            let (script_1, script_2) = future::zip(script_1, script_2).await;
            assert!(matches!(script_1, Err(Error::Stolen)));
            assert!(matches!(script_2, Ok(((), Ok(())))));
        });
    }

    /// Example 4: several locks in a consistent order. The text has lost its code; a scope needs no
    /// order.
    #[test]
    fn line_654() {
        async fn request_multiple<T>(
            locks: &Locks,
            resources: &[&str],
            callback: impl AsyncFnOnce(&[Lock<'_>]) -> T,
        ) -> Result<T, Error> {
            let mut sorted = resources.to_vec();
            sorted.sort_unstable(); // Always request in the same order.
            let mut held = Vec::new();
            for resource in sorted {
                held.push(locks.acquire(resource).await?);
            }
            Ok(callback(&held).await)
        }

        future::block_on(async {
            let locks = manager();
            let names =
                async |held: &[Lock<'_>]| held.iter().map(|lock| lock.name().to_string()).collect::<Vec<_>>();
            let one = request_multiple(&locks, &["A", "B"], names);
            let other = request_multiple(&locks, &["B", "A"], names);
            let (one, other) = future::try_zip(one, other).await.unwrap();
            assert_eq!((one.concat(), other.concat()), ("AB".to_string(), "AB".to_string()));
            let scope = future::try_zip(
                locks.request(["A", "B"]).run(async |_| ()),
                locks.request(["B", "A"]).run(async |_| ()),
            );
            scope.await.unwrap();
        });
    }
}
