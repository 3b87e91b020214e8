//! The processes of this machine, as `/proc` shows them: whether one is still the one it was.

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::{fs, time::Duration};
use tokio::net::unix::pipe::Receiver;

/// How often it is looked whether a process still lives of which the kernel does not tell.
const LOOK: Duration = Duration::from_millis(50);

/// A process, told apart from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// When it started, in ticks since the machine did.
    pub(crate) started: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Running,
    /// By a signal or a debugger: it cannot come back before it is continued.
    Stopped,
    Dead,
}

impl Process {
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let Stat { started, .. } = stat(pid)?;
        Some(Self { pid, started })
    }

    pub(crate) fn parent(self) -> Option<i32> {
        stat(self.pid).filter(|stat| stat.started == self.started).map(|stat| stat.parent)
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(self) {
        let watch = || {
            let process = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::NONBLOCK).ok()?;
            // Not a pipe; but Tokio is only to say when it can be read, which is when the process has ended.
            Receiver::from_owned_fd_unchecked(process).ok()
        };
        let watch = watch();
        while self.life() != Life::Dead {
            match &watch {
                Some(watch) if watch.readable().await.is_ok() => return,
                _ => tokio::time::sleep(LOOK).await,
            }
        }
    }

    pub(crate) fn life(self) -> Life {
        match stat(self.pid) {
            Some(Stat { state, started, .. }) if started == self.started => match state {
                'T' | 't' => Life::Stopped,
                'Z' | 'X' => Life::Dead,
                _ => Life::Running,
            },
            _ => Life::Dead,
        }
    }
}

struct Stat {
    state: char,
    parent: i32,
    started: u64,
}

fn stat(pid: i32) -> Option<Stat> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may have anything in it, parentheses too.
    let fields = stat.rsplit_once(')')?.1;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    Some(Stat { state, parent, started: fields.nth(17)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::{Life, Process};
    use std::{
        process::{Command, Stdio, id},
        time::Duration,
    };

    #[test]
    fn a_process_is_running_then_stopped_then_dead() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat starts");
        let pid = i32::try_from(child.id()).expect("a pid is an i32");
        let process = Process::of(pid).expect("it runs");
        assert_eq!(process.life(), Life::Running);
        let signal = |name: &str| {
            let done = Command::new("kill").args([name, &pid.to_string()]).status().expect("kill starts");
            assert!(done.success());
        };
        signal("-STOP");
        while process.life() == Life::Running {
            std::thread::yield_now();
        }
        assert_eq!(process.life(), Life::Stopped);
        signal("-KILL");
        child.wait().expect("it ends");
        assert_eq!(process.life(), Life::Dead);
    }

    #[tokio::test]
    async fn the_end_of_a_process_can_be_waited_for() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat starts");
        let process = Process::of(i32::try_from(child.id()).expect("a pid is an i32")).expect("it runs");
        assert_eq!(process.parent(), i32::try_from(id()).ok());
        let still = tokio::time::timeout(Duration::from_millis(20), process.ended()).await;
        assert!(still.is_err(), "it runs");
        child.kill().expect("it runs");
        process.ended().await;
        // Nobody has asked for its status yet: the kernel keeps it, and its number.
        assert_eq!(process.life(), Life::Dead);
        child.wait().expect("it has ended");
        process.ended().await;
    }

    #[test]
    fn another_process_of_the_same_number_is_not_the_same() {
        let pid = i32::try_from(id()).expect("a pid is an i32");
        let process = Process::of(pid).expect("it is this one");
        assert_eq!(Process { started: process.started + 1, ..process }.life(), Life::Dead);
    }
}
