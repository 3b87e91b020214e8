//! The network between a worker and the daemon: it can delay all traffic, in both directions, for a
//! while.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

pub(crate) struct Network {
    address: SocketAddr,
    silence: Arc<Silence>,
}

#[derive(Default)]
struct Silence {
    silent: Mutex<bool>,
    over: Condvar,
}

impl Network {
    /// One that leads to a daemon at this address, whether or not it is there.
    pub(crate) fn to(daemon: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (address, silence) = (listener.local_addr()?, Arc::<Silence>::default());
        let shared = Arc::clone(&silence);
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                // Without a listener, the connection ends at once.
                let _ = TcpStream::connect(daemon).and_then(|far| connect(near, far, &shared));
            }
        });
        Ok(Self { address, silence })
    }

    pub(crate) fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Whether all is held up from now on.
    pub(crate) fn set_silent(&self, silent: bool) {
        *self.silence.lock() = silent;
        self.silence.over.notify_all();
    }
}

impl Silence {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) {
        drop(self.over.wait_while(self.lock(), |silent| *silent));
    }
}

fn connect(near: TcpStream, far: TcpStream, silence: &Arc<Silence>) -> io::Result<()> {
    for (from, to) in [(near.try_clone()?, far.try_clone()?), (far, near)] {
        let silence = Arc::clone(silence);
        thread::spawn(move || carry(from, to, &silence));
    }
    Ok(())
}

/// Carries all that is said in one direction, and the end of it.
fn carry(mut from: TcpStream, mut to: TcpStream, silence: &Silence) {
    let mut bytes = [0; 16 << 10];
    loop {
        let count = from.read(&mut bytes).unwrap_or(0);
        silence.wait();
        if count == 0 || to.write_all(&bytes[..count]).is_err() {
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
            return;
        }
    }
}
