//! The contents of `top`, and the effect of keys on them. No terminal, no daemon.

use crate::show;
use lockkeeper_client::{Entry, Snapshot};
use lockkeeper_core::Name;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

#[derive(Default)]
pub(crate) struct Model {
    pub(crate) snapshot: Snapshot,
    /// The names in the snapshot, in the order of arrival.
    locks: Vec<Lock>,
    /// Numbers of entries of the snapshot, lock by lock: those that hold it, then those that wait,
    /// in order.
    members: Vec<u32>,
    /// Numbers of locks: those that pass the filter, sorted.
    shown: Vec<u32>,
    /// Which of them is selected, and which is the first on the screen.
    pub(crate) selected: usize,
    pub(crate) first: usize,
    /// How many fit on the screen.
    pub(crate) page: usize,
    pub(crate) filter: String,
    pub(crate) sort: Sort,
    pub(crate) mode: Mode,
    /// The note about the last action, or about a refusing daemon. Shown until the next key.
    pub(crate) note: Option<String>,
    /// The daemon's process, if a signal has stopped it: what is shown is of before.
    pub(crate) stopped: Option<u32>,
    /// How many requests hold something, and how many wait.
    pub(crate) held: usize,
    pub(crate) waiting: usize,
    /// Grants a second, once there are two snapshots to tell it from.
    pub(crate) rate: Option<f64>,
    /// The greatest token of the last snapshot, and when that was.
    last: Option<(u64, Instant)>,
}

/// A name, and how it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lock {
    /// Its first member.
    start: u32,
    pub(crate) holders: u32,
    pub(crate) waiters: u32,
    /// The longest wait and hold, in milliseconds.
    pub(crate) longest_wait: u64,
    pub(crate) longest_held: u64,
    /// Whether one of its requests is in a cycle.
    pub(crate) deadlock: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    #[default]
    Wait,
    Queue,
    Held,
    Name,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    #[default]
    List,
    /// The filter is being typed.
    Filter,
    /// Whether to break the locks of this name.
    Confirm(Name),
    Help,
}

/// An action outside the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Nothing,
    Quit,
    /// As Ctrl-Z has it.
    Stop,
    Release(Name),
}

const SECOND: Duration = Duration::from_secs(1);

/// More grants a second than any daemon makes: it was killed, and began a new range of tokens.
const TOO_FAST: f64 = 1e6;

impl Sort {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Wait => "longest wait",
            Self::Queue => "longest queue",
            Self::Held => "longest held",
            Self::Name => "name",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Wait => Self::Queue,
            Self::Queue => Self::Held,
            Self::Held => Self::Name,
            Self::Name => Self::Wait,
        }
    }
}

impl Model {
    /// Takes on what the daemon says. Whatever was selected stays so, if it is still there.
    pub(crate) fn take(&mut self, snapshot: Snapshot, now: Instant) {
        let selected = self.selected().map(|lock| self.name(lock).clone());
        self.snapshot = snapshot;
        self.measure(now);
        self.group();
        self.arrange(selected);
    }

    fn measure(&mut self, now: Instant) {
        let entries = &self.snapshot.entries;
        let requests = |held: bool| {
            let those = entries.iter().filter(|entry| entry.token.is_some() == held);
            those.map(|entry| entry.arrival).collect::<HashSet<_>>().len()
        };
        (self.held, self.waiting) = (requests(true), requests(false));
        // From two snapshots at least a second apart. Each grant has the next token.
        if self.last.is_some_and(|(_, then)| now.duration_since(then) < SECOND) {
            return;
        }
        let greatest = self.snapshot.last_token;
        let rate = self.last.and_then(|(before, then)| {
            let seconds = now.duration_since(then).as_secs_f64();
            let grants = greatest.checked_sub(before)?;
            (seconds > 0.0).then(|| grants as f64 / seconds)
        });
        self.rate = rate.filter(|rate| *rate < TOO_FAST);
        self.last = Some((greatest, now));
    }

    /// Brings the entries of each name together. Two passes: one counts, one puts them in their
    /// places.
    fn group(&mut self) {
        let entries = &self.snapshot.entries;
        let in_cycles: HashSet<u64> = self
            .snapshot
            .deadlocks
            .iter()
            .flat_map(|deadlock| &deadlock.cycle)
            .map(|step| step.arrival)
            .collect();
        self.locks.clear();
        let mut numbers: HashMap<&Name, usize> = HashMap::new();
        let mut lock_of = Vec::with_capacity(entries.len());
        for entry in entries {
            let number = *numbers.entry(&entry.name).or_insert(self.locks.len());
            if number == self.locks.len() {
                self.locks.push(Lock::default());
            }
            lock_of.push(number);
            let lock = &mut self.locks[number];
            match entry.token {
                Some(_) => {
                    lock.holders += 1;
                    lock.longest_held = lock.longest_held.max(entry.since);
                }
                None => {
                    lock.waiters += 1;
                    lock.longest_wait = lock.longest_wait.max(entry.since);
                }
            }
            lock.deadlock |= in_cycles.contains(&entry.arrival);
        }
        let mut start = 0;
        let mut next: Vec<u32> = Vec::with_capacity(self.locks.len());
        for lock in &mut self.locks {
            lock.start = start;
            next.push(start);
            start += lock.holders + lock.waiters;
        }
        self.members = vec![0; entries.len()];
        for (entry, number) in (0u32..).zip(lock_of) {
            self.members[next[number] as usize] = entry;
            next[number] += 1;
        }
    }

    /// Filters, sorts, and finds the one that was selected.
    fn arrange(&mut self, selected: Option<Name>) {
        let filter = self.filter.to_lowercase();
        let passes = |lock: &Lock| {
            let has = |text: &str| text.to_lowercase().contains(&filter);
            filter.is_empty()
                || has(&show::name(self.name(lock)))
                || self.members(lock).any(|entry| entry.info.as_deref().is_some_and(has))
        };
        let shown = (0u32..).zip(&self.locks).filter(|(_, lock)| passes(lock));
        let mut shown: Vec<u32> = shown.map(|(number, _)| number).collect();
        let lock = |number: &u32| &self.locks[*number as usize];
        match self.sort {
            Sort::Wait => shown.sort_by_key(|number| {
                let lock = lock(number);
                Reverse((lock.deadlock, lock.longest_wait, lock.waiters, lock.longest_held))
            }),
            Sort::Queue => shown.sort_by_key(|number| {
                let lock = lock(number);
                Reverse((lock.waiters, lock.longest_wait))
            }),
            Sort::Held => shown.sort_by_key(|number| Reverse(lock(number).longest_held)),
            Sort::Name => shown.sort_by(|one, other| {
                let bytes = |number| self.name(lock(number)).as_bytes();
                bytes(one).cmp(bytes(other))
            }),
        }
        self.shown = shown;
        let found =
            selected.and_then(|name| self.visible(0, usize::MAX).position(|lock| *self.name(lock) == name));
        self.selected = found.unwrap_or(self.selected).min(self.shown.len().saturating_sub(1));
    }

    /// Some of the locks that are shown, in order.
    pub(crate) fn visible(&self, from: usize, count: usize) -> impl Iterator<Item = &Lock> {
        self.shown.iter().skip(from).take(count).map(|number| &self.locks[*number as usize])
    }

    /// How many are shown.
    pub(crate) fn len(&self) -> usize {
        self.shown.len()
    }

    pub(crate) fn selected(&self) -> Option<&Lock> {
        self.visible(self.selected, 1).next()
    }

    pub(crate) fn name(&self, lock: &Lock) -> &Name {
        &self.snapshot.entries[self.members[lock.start as usize] as usize].name
    }

    /// Those that hold it, then those that wait, in order.
    pub(crate) fn members(&self, lock: &Lock) -> impl Iterator<Item = &Entry> {
        let members = self.members.iter().skip(lock.start as usize);
        let count = (lock.holders + lock.waiters) as usize;
        members.take(count).map(|entry| &self.snapshot.entries[*entry as usize])
    }

    /// Executes a key.
    pub(crate) fn press(&mut self, key: KeyEvent) -> Act {
        if key.kind == KeyEventKind::Release {
            return Act::Nothing;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Act::Quit,
                KeyCode::Char('z') => Act::Stop,
                _ => Act::Nothing,
            };
        }
        self.note = None;
        match self.mode.clone() {
            Mode::List => return self.press_in_list(key.code),
            Mode::Filter => self.press_in_filter(key.code),
            Mode::Help => self.mode = Mode::List,
            Mode::Confirm(name) => {
                self.mode = Mode::List;
                if key.code == KeyCode::Char('y') {
                    return Act::Release(name);
                }
                self.note = Some("Nothing was broken".into());
            }
        }
        Act::Nothing
    }

    fn press_in_list(&mut self, key: KeyCode) -> Act {
        let last = self.len().saturating_sub(1);
        match key {
            KeyCode::Char('q') => return Act::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.selected = last.min(self.selected + 1),
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(self.page),
            KeyCode::PageDown => self.selected = last.min(self.selected + self.page),
            KeyCode::Home | KeyCode::Char('g') => self.selected = 0,
            KeyCode::End | KeyCode::Char('G') => self.selected = last,
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                (self.selected, self.first) = (0, 0);
                self.arrange(None);
            }
            KeyCode::Char('r') => match self.selected() {
                Some(lock) if lock.holders > 0 => self.mode = Mode::Confirm(self.name(lock).clone()),
                Some(_) => self.note = Some("Nobody holds it".into()),
                None => {}
            },
            KeyCode::Esc => {
                self.filter.clear();
                self.refilter();
            }
            _ => {}
        }
        Act::Nothing
    }

    fn press_in_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.mode = Mode::List,
            KeyCode::Esc => {
                self.mode = Mode::List;
                self.filter.clear();
            }
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
        self.refilter();
    }

    fn refilter(&mut self) {
        let selected = self.selected().map(|lock| self.name(lock).clone());
        self.arrange(selected);
    }
}

#[cfg(test)]
mod tests {
    use super::{Act, Mode, Model, Sort};
    use crate::show;
    use lockkeeper_client::{Deadlock, Entry, Snapshot, Step};
    use lockkeeper_core::Name;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use std::time::{Duration, Instant};

    fn entry(name: &str, arrival: u64, token: Option<u64>, since: u64) -> Entry {
        Entry {
            name: Name::from(name),
            mode: lockkeeper_core::Mode::Exclusive,
            client_id: format!("c{arrival}"),
            arrival,
            token,
            info: Some(format!("job {arrival}")),
            since,
            nested_in: None,
            stole: false,
            owner: None,
        }
    }

    /// `a` is held; `b` is held and waited for; of `c`, two are waited for longer.
    fn snapshot() -> Snapshot {
        let entries = vec![
            entry("a", 1, Some(10), 900),
            entry("b", 2, Some(11), 800),
            entry("c", 3, Some(12), 700),
            entry("c", 4, None, 600),
            entry("b", 5, None, 500),
            entry("c", 6, None, 400),
        ];
        Snapshot { entries, last_token: 12, ..Snapshot::default() }
    }

    fn model() -> Model {
        let mut model = Model::default();
        model.take(snapshot(), Instant::now());
        model
    }

    fn press(model: &mut Model, keys: &str) -> Act {
        let keys = keys.chars().map(|key| match key {
            '\r' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            key => KeyCode::Char(key),
        });
        let acts = keys.map(|key| model.press(KeyEvent::new(key, KeyModifiers::NONE)));
        acts.last().expect("there is a key")
    }

    fn names(model: &Model) -> String {
        model.visible(0, usize::MAX).map(|lock| show::name(model.name(lock))).collect()
    }

    #[test]
    fn the_longest_wait_comes_first_and_s_sorts_otherwise() {
        let mut model = model();
        assert_eq!(names(&model), "cba");
        assert_eq!((model.held, model.waiting), (3, 3));
        let mut orders = Vec::new();
        for _ in 0..4 {
            press(&mut model, "s");
            orders.push((model.sort, names(&model)));
        }
        let expected = [(Sort::Queue, "cba"), (Sort::Held, "abc"), (Sort::Name, "abc"), (Sort::Wait, "cba")];
        assert_eq!(orders, expected.map(|(sort, names)| (sort, names.to_string())));
    }

    #[test]
    fn the_queue_of_a_lock_is_in_order() {
        let model = model();
        let first = model.selected().expect("there is one");
        assert_eq!((first.holders, first.waiters, first.longest_wait), (1, 2, 600));
        assert_eq!(model.members(first).map(|entry| entry.arrival).collect::<Vec<_>>(), [3, 4, 6]);
    }

    #[test]
    fn the_selection_stays_with_its_name() {
        let mut model = model();
        press(&mut model, "j");
        let selected = |model: &Model| model.selected().map(|lock| show::name(model.name(lock)));
        assert_eq!(selected(&model).as_deref(), Some("b"));
        // Now `b` is waited for the longest.
        let mut changed = snapshot();
        changed.entries[4].since = 5000;
        model.take(changed, Instant::now());
        assert_eq!((names(&model).as_str(), selected(&model).as_deref()), ("bca", Some("b")));
        press(&mut model, "jjjj");
        assert_eq!(selected(&model).as_deref(), Some("a"));
        press(&mut model, "gk");
        assert_eq!(model.selected, 0);
        model.take(Snapshot::default(), Instant::now());
        assert_eq!((selected(&model), press(&mut model, "jkGr")), (None, Act::Nothing));
    }

    #[test]
    fn a_filter_looks_at_names_and_labels() {
        let mut model = model();
        assert_eq!(press(&mut model, "/B\r"), Act::Nothing);
        // `b`, and no key was taken for a command; every label has a `b`, too.
        assert_eq!((names(&model).as_str(), model.filter.as_str(), &model.mode), ("cba", "B", &Mode::List));
        press(&mut model, "\u{1b}/JOB 5\r");
        assert_eq!(names(&model), "b");
        model.take(snapshot(), Instant::now());
        assert_eq!(names(&model), "b", "it stays");
        press(&mut model, "\u{1b}");
        assert_eq!(names(&model), "cba");
    }

    #[test]
    fn a_release_has_to_be_confirmed() {
        let mut model = model();
        assert_eq!(press(&mut model, "r"), Act::Nothing);
        assert_eq!(model.mode, Mode::Confirm(Name::from("c")));
        assert_eq!((press(&mut model, "n"), &model.mode), (Act::Nothing, &Mode::List));
        press(&mut model, "r");
        // The list may change in the meantime: the lock in the question is the one that is
        // released.
        model.take(Snapshot::default(), Instant::now());
        assert_eq!(press(&mut model, "y"), Act::Release(Name::from("c")));
        assert_eq!(press(&mut model, "q"), Act::Quit);
    }

    #[test]
    fn deadlocks_come_first() {
        let mut snapshot = snapshot();
        let step = |arrival, name: &str| Step {
            arrival,
            client_id: String::new(),
            waits_for: Some(Name::from(name)),
        };
        snapshot.deadlocks = vec![Deadlock { words: String::new(), cycle: vec![step(2, "x"), step(5, "b")] }];
        let mut model = Model::default();
        model.take(snapshot, Instant::now());
        assert_eq!(names(&model), "bca");
        assert!(model.selected().is_some_and(|lock| lock.deadlock));
    }

    #[test]
    fn the_rate_is_told_from_tokens() {
        let (mut model, start) = (Model::default(), Instant::now());
        model.take(snapshot(), start);
        assert_eq!(model.rate, None);
        let mut later = snapshot();
        later.last_token = 112;
        model.take(later.clone(), start + Duration::from_secs(2));
        assert_eq!(model.rate, Some(50.0));
        // After a daemon was killed, tokens continue at another million.
        later.last_token = 5_000_000;
        model.take(later, start + Duration::from_secs(3));
        assert_eq!(model.rate, None);
    }

    #[test]
    fn a_hundred_thousand_locks_are_as_good_as_three() {
        let entries = (0..100_000).map(|number| entry(&format!("lock/{number}"), number, Some(number), 1));
        let mut model = Model::default();
        model.take(Snapshot { entries: entries.collect(), ..Snapshot::default() }, Instant::now());
        press(&mut model, "G");
        assert_eq!((model.len(), model.selected), (100_000, 99_999));
        press(&mut model, "/lock/99999\r");
        assert_eq!(model.len(), 1);
    }
}
