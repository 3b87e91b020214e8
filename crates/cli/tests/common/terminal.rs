//! A terminal with somebody before it: a pseudo-terminal, its keys and its screen.

use super::PATIENCE;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use std::{
    fs::File,
    io::{Read, Write},
    num::NonZero,
    process::{Child, Command, ExitStatus},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

pub(crate) struct Terminal {
    /// Our side. The terminal hangs up when no process has it open.
    ours: Option<Arc<File>>,
    screen: Arc<Mutex<vt100::Parser>>,
    /// Reads the terminal's output, as long as a process can write to it.
    reader: JoinHandle<()>,
    pub(crate) child: Child,
}

impl Terminal {
    /// Starts a command that has this terminal as its own, of 80 × 24.
    pub(crate) fn start(command: &Command) -> Self {
        Self::start_with_size(command, 24, 80)
    }

    pub(crate) fn start_with_size(command: &Command, rows: u16, columns: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).expect("there is a pseudo-terminal");
        grantpt(&ours).and_then(|()| unlockpt(&ours)).expect("it is ours");
        let theirs = ioctl_tiocgptpeer(&ours, flags).expect("it has another side");
        tcsetwinsize(&ours, size(rows, columns)).expect("it is a terminal");
        // A session of its own, with the terminal as its controlling one.
        let mut session = Command::new("setsid");
        // The tests' parent may ignore signals, which would be inherited.
        session
            .args(["--ctty", "env", "--default-signal"])
            .arg(command.get_program())
            .args(command.get_args())
            .env_clear();
        session.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        session.env("TERM", "xterm-256color");
        let side = || theirs.try_clone().expect("there are descriptors left");
        let child = session.stdin(side()).stdout(side()).stderr(side()).spawn().expect("it starts");
        let ours = Arc::new(File::from(ours));
        let screen = Arc::new(Mutex::new(vt100::Parser::new(some(rows), some(columns), 0)));
        let (watched, shown) = (Arc::downgrade(&ours), Arc::clone(&screen));
        let copy = move || while watched.upgrade().is_some_and(|side| copy(&side, &shown)) {};
        Self { ours: Some(ours), screen, reader: thread::spawn(copy), child }
    }

    /// Closes the terminal's window.
    pub(crate) fn hang_up(&mut self) {
        self.ours = None;
    }

    fn ours(&self) -> &File {
        self.ours.as_ref().expect("it has not hung up")
    }

    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        self.screen.lock().expect("nobody panics with it").screen_mut().set_size(some(rows), some(columns));
        tcsetwinsize(self.ours(), size(rows, columns)).expect("it is a terminal");
    }

    pub(crate) fn press(&self, keys: &str) {
        self.ours().write_all(keys.as_bytes()).expect("it takes keys");
    }

    /// What is on the screen.
    pub(crate) fn screen(&self) -> String {
        self.screen.lock().expect("nobody panics with it").screen().contents()
    }

    /// The same, with colours as escape sequences.
    pub(crate) fn colours(&self) -> String {
        self.screen.lock().expect("nobody panics with it").screen().contents_formatted()
    }

    /// Waits until the screen is as it should be, and returns it.
    pub(crate) fn wait(&self, what: &str, is: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let screen = self.screen();
            if is(&screen) {
                return screen;
            }
            assert!(Instant::now() < deadline, "{what} does not come:\n{screen}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the screen has the text, and returns it.
    pub(crate) fn shows(&self, text: &str) -> String {
        self.wait(text, |screen| screen.contains(text))
    }

    /// Waits for the end of the command.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end:\n{}", self.screen());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Terminal {
    /// All processes on the terminal end with it. A surviving one would start another daemon.
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(Pid::from_child(&self.child), Signal::HUP);
        }
        while !self.reader.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn some(number: u16) -> NonZero<u16> {
    NonZero::new(number).expect("a terminal has some")
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Takes what is written to the terminal to its screen. Not for long: it is to hang up when it is
/// told to.
fn copy(mut side: &File, screen: &Mutex<vt100::Parser>) -> bool {
    let soon = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    if !matches!(poll(&mut [PollFd::new(&side, PollFlags::IN)], Some(&soon)), Ok(1..)) {
        return true;
    }
    let mut bytes = [0; 4096];
    let Ok(count @ 1..) = side.read(&mut bytes) else { return false };
    screen.lock().expect("nobody panics with it").process(&bytes[..count]);
    true
}
