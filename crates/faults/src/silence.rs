//! Periods in which no daemon of a fleet answered: they explain lost locks.
//!
//! A client of each daemon queries it again and again. Faults and load do not matter here, only
//! their result.

use crate::{Nanos, ms, now};
use lockkeeper_client::{Callbacks, Endpoint, Options, Session};
use std::{
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

/// An answer that takes no longer is none that a client would miss.
const PROMPT: Nanos = ms(300);

/// How long to wait before the next question.
const PAUSE: Duration = Duration::from_millis(20);

/// From when to when a daemon did not answer.
#[derive(Clone, Default)]
pub(crate) struct Silences(Arc<Mutex<Heard>>);

#[derive(Default)]
struct Heard {
    silences: Vec<(Nanos, Nanos)>,
    /// When the unanswered query was sent.
    asked: Option<Nanos>,
}

impl Silences {
    /// Asks a daemon until this process ends.
    pub(crate) fn listen(endpoint: Endpoint) -> Self {
        let silences = Self::default();
        let heard = silences.clone();
        thread::spawn(move || {
            let mut session = None;
            loop {
                let asked = now();
                heard.update(|heard| heard.asked = Some(asked));
                while !answers(&mut session, &endpoint) {
                    session = None;
                    thread::sleep(PAUSE);
                }
                heard.update(|heard| {
                    heard.asked = None;
                    heard.silences.extend((now() - asked > PROMPT).then(|| (asked, now())));
                });
                thread::sleep(PAUSE);
            }
        });
        silences
    }

    fn update(&self, change: impl FnOnce(&mut Heard)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Those until now.
    fn until_now(&self) -> Vec<(Nanos, Nanos)> {
        let heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.silences.iter().copied().chain(heard.asked.map(|asked| (asked, now()))).collect()
    }
}

fn answers(session: &mut Option<Session>, endpoint: &Endpoint) -> bool {
    if session.is_none() {
        *session = Session::open(endpoint, Options::new("silence"), Callbacks).ok();
    }
    session.as_ref().is_some_and(|session| session.query(None).is_ok())
}

/// Times at which a client may have been without a daemon that answers: its own has just fallen
/// silent, which it notices after three sevenths of its ttl; or another is silent as well, which it
/// may try first.
pub(crate) fn outages(daemons: &[Silences], ttl: Duration) -> Vec<(Nanos, Nanos)> {
    let silences: Vec<_> = daemons.iter().map(Silences::until_now).collect();
    unserved(&silences, Nanos::try_from(ttl.as_nanos()).unwrap_or(Nanos::MAX) / 7 * 3)
}

/// The same, of those that notice so late. None overlap.
fn unserved(daemons: &[Vec<(Nanos, Nanos)>], notice: Nanos) -> Vec<(Nanos, Nanos)> {
    let all = || daemons.iter().flatten().copied();
    let mut edges: Vec<_> = all().flat_map(|(from, to)| [from, to.min(from + notice), to]).collect();
    edges.sort_unstable();
    let is_out = |&(start, end): &(Nanos, Nanos)| {
        let silent = || all().filter(|&(from, to)| from <= start && end <= to);
        start < end && (silent().count() > 1 || silent().any(|(from, _)| end <= from + notice))
    };
    edges.windows(2).map(|pair| (pair[0], pair[1])).filter(is_out).collect()
}

#[cfg(test)]
mod tests {
    use super::unserved;

    #[test]
    fn one_daemon_that_is_silent_counts_until_its_clients_notice_and_two_count_throughout() {
        let outages = |daemons: &[&[(u64, u64)]]| {
            let daemons: Vec<_> = daemons.iter().map(|silences| silences.to_vec()).collect();
            unserved(&daemons, 30)
        };
        assert_eq!(outages(&[&[(100, 120)], &[]]), [(100, 120)]);
        assert_eq!(outages(&[&[(100, 190), (300, 310)], &[]]), [(100, 130), (300, 310)]);
        assert_eq!(outages(&[&[(100, 200)], &[(140, 190)]]), [(100, 130), (140, 170), (170, 190)]);
        // Any two.
        let long: u64 =
            outages(&[&[(100, 200)], &[(110, 140)], &[(135, 180)]]).iter().map(|(from, to)| to - from).sum();
        assert_eq!(long, 80);
    }
}
