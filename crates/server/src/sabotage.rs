//! Wrong ways to judge whether a client is alive. Tests enable them to show that they are noticed.
//! Not part of a normal build.

use crate::fifo::Life;
use lockkeeper_service::SessionView;
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    fs,
    time::Duration,
};

/// A wrong sign of a client's death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Its FIFO cannot be checked for lack of a resource.
    BusyIsDead,
    /// The process that connected, or its main thread, has ended. Also: neither has ended, and the
    /// client does not come back soon. Only a process that is visibly stopped is waited for.
    JudgeByProcess,
}

/// For how long a client that does not come back is waited for.
const GRACE: Duration = Duration::from_millis(100);

thread_local! {
    static MISTAKE: Cell<Option<Mistake>> = const { Cell::new(None) };
    /// Attachments whose end was noticed: session and number.
    static WAITED_FOR: RefCell<BTreeSet<(u64, u64)>> = const { RefCell::new(BTreeSet::new()) };
}

/// Makes a mistake in all that this thread serves from now on.
pub fn make(mistake: Mistake) {
    MISTAKE.set(Some(mistake));
}

/// How soon to ask again, if not as usual.
pub(crate) fn pause() -> Option<Duration> {
    (MISTAKE.get() == Some(Mistake::JudgeByProcess)).then_some(GRACE)
}

/// The result of a check under this mistake.
pub(crate) fn judge(life: Life, id: u64, session: SessionView<'_>) -> Life {
    match (MISTAKE.get(), life) {
        (Some(Mistake::BusyIsDead), Life::Busy(_)) => Life::Dead,
        (Some(Mistake::JudgeByProcess), Life::Alive(_)) => match state_of(session.owner) {
            Process::Dead => Life::Dead,
            Process::Stopped => Life::Alive(None),
            Process::Other => {
                let first = WAITED_FOR.with_borrow_mut(|all| all.insert((id, session.attachment)));
                if first { Life::Alive(None) } else { Life::Dead }
            }
        },
        (_, life) => life,
    }
}

enum Process {
    Dead,
    Stopped,
    /// It runs, or cannot be seen.
    Other,
}

/// The state of the process that opened a session, whose owner begins with `pid 4711`.
fn state_of(owner: &str) -> Process {
    let mut words = owner.split(' ');
    let (Some("pid"), Some(pid)) = (words.next(), words.next()) else { return Process::Other };
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return Process::Dead };
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    // A daemon in a container beside that of its client gets no number for it. This one may be
    // outside of all containers, and leaves the number aside.
    if field("NSpid:").split_whitespace().count() > 1 {
        return Process::Other;
    }
    match field("State:").trim().chars().next() {
        Some('Z' | 'X') => Process::Dead,
        Some('T' | 't') => Process::Stopped,
        _ => Process::Other,
    }
}
