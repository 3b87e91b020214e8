//! The processes of this machine, as `/proc` shows them: whether one is still the one it was.

use std::fs;

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
        let (_, started) = stat(pid)?;
        Some(Self { pid, started })
    }

    pub(crate) fn life(self) -> Life {
        match stat(self.pid) {
            Some((state, started)) if started == self.started => match state {
                'T' | 't' => Life::Stopped,
                'Z' | 'X' => Life::Dead,
                _ => Life::Running,
            },
            _ => Life::Dead,
        }
    }
}

/// The state of a process and when it started.
fn stat(pid: i32) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may have anything in it, parentheses too.
    let fields = stat.rsplit_once(')')?.1;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{Life, Process};
    use std::process::{Command, Stdio, id};

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

    #[test]
    fn another_process_of_the_same_number_is_not_the_same() {
        let pid = i32::try_from(id()).expect("a pid is an i32");
        let process = Process::of(pid).expect("it is this one");
        assert_eq!(Process { started: process.started + 1, ..process }.life(), Life::Dead);
    }
}
