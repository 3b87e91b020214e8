//! `lockkeeper run`: a command that works while a lock is held, and the processes that supervise
//! it.
//!
//! A local lock lives by a FIFO, which the command inherits. It lasts as long as the command, even
//! if `run` exits. A lock with a lease is transferred to a guardian, a separate process. The
//! command is executed once the guardian knows it and the lease is valid. The guardian ends it
//! before the lease can expire, and tells `run` until when the lease is valid, so that `run` ends
//! the command if the guardian cannot. They use a local socket without delay; a stopped process
//! reads when it continues.
//!
//! The command counts as working until it is dead, also while it is stopped. If neither `run` nor
//! the guardian can act, nothing can end it: that is excused. So is a command whose FIFO was
//! removed or replaced: `run` gets another one, the command does not.

use crate::{
    client::{Client, Input},
    clock::Ticks,
    rules::DriverRule,
    simulation::{Happening, Simulation, note},
};
use lockkeeper_core::Mode;
use lockkeeper_service::{Key, Micros, Origin, Request, Session, SessionId};
use lockkeeper_wire::v2::Flags;

/// A `run` that has its lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// The client that is `run`.
    run: usize,
    /// The client that has the session: `run` itself, or the guardian.
    holder: usize,
    /// The lock, in the holder's session.
    key: Key,
    stage: JobStage,
    /// What the command has inherited.
    descriptor: Option<u64>,
    /// It ends when it gets SIGTERM.
    obeys: bool,
    /// Whether the guardian knows the process that is to become the command.
    known: bool,
    /// Whether the guardian was ready: `run` starts the command once.
    ready: bool,
    /// The lease's deadline and ttl, as the guardian has said last.
    lease: Option<(Micros, Micros)>,
    timer: Option<Ticks>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobStage {
    /// There is no command yet.
    Starting,
    Working,
    /// The command has ended, or will never be started.
    Over,
}

impl Job {
    fn is_guarded(&self) -> bool {
        self.run != self.holder
    }
}

/// How long before the end of the lease the guardian sends SIGTERM, `run` does, and either sends
/// SIGKILL: parts of the ttl.
const WARN: u64 = 4;
const WARN_BY_RUN: u64 = 8;
const KILL: u64 = 16;

impl Simulation {
    /// What the host of a client that is `run` does next.
    pub(crate) fn act_as_run(&mut self, index: usize) {
        let client = &self.clients[index];
        if client.job.is_some() || !client.live.is_empty() {
            return;
        }
        if self.calm || client.losses > 0 {
            self.feed(index, Input::Close);
            return;
        }
        let scope = vec![(self.choose_name(), Mode::Exclusive)];
        let request = Request { scope, flags: Flags::default(), nested_in: None, info: None };
        self.feed(index, Input::Request(request));
    }

    /// Something has happened to a client. If it belongs to a job, the running processes of the job
    /// act on it.
    pub(crate) fn tend_job_of(&mut self, index: usize) {
        match self.clients[index].job {
            Some(job) => self.tend(job),
            None if self.clients[index].runs => self.begin_job(index),
            None => {}
        }
    }

    /// A client that has its lock starts the command, once it is known what the life of the lock
    /// depends on.
    fn begin_job(&mut self, index: usize) {
        let client = &self.clients[index];
        let now = client.clock.read(self.now);
        let held = |key: &&Key| client.session.is_held(now, **key);
        let Some(&key) = client.live.iter().find(held).filter(|_| self.can_act(index)) else { return };
        let mut descriptor = client.descriptor;
        if client.session.ttl().is_some() && self.plan.keeps(DriverRule::ConfirmedFifo) {
            if descriptor.is_some() && client.confirming.is_some() && client.confirming == client.current {
                // The answer is on its way.
                return;
            }
            descriptor = None;
        }
        let (job, obeys) = (self.jobs.len(), self.random.chance(500));
        let (stage, lease, timer) = (JobStage::Starting, None, None);
        let (known, ready) = (false, false);
        self.jobs.push(Job {
            run: index,
            holder: index,
            key,
            stage,
            descriptor,
            obeys,
            known,
            ready,
            lease,
            timer,
        });
        self.clients[index].job = Some(job);
        match descriptor {
            Some(_) => self.start_command(job),
            None => self.hire(job),
        }
    }

    /// Gives the session to a new process, the guardian.
    fn hire(&mut self, job: usize) {
        let Job { run, key, .. } = self.jobs[job];
        let client = &mut self.clients[run];
        let Some(transfer) = client.session.give_away() else { return };
        let (wish, connection) = (client.wishes.remove(&key), client.current.take());
        client.live.clear();
        let (clock, origin, start) = (client.clock, client.origin, client.clock.read(self.now));
        let config = client.config.clone();
        if let Some(connection) = connection {
            self.client_closes(connection);
        }
        let guardian = self.clients.len();
        note!(self, "client {run} gives its session to client {guardian}");
        let session = Session::adopt(config.clone(), &transfer, start, ());
        let mut client = Client::new(session, config, clock, start, origin);
        client.job = Some(job);
        if let Some(wish) = wish {
            self.history.numbers.extend(wish.number.map(|number| (number, (guardian, 0))));
            client.wishes.insert(0, wish);
            client.live.push(0);
        }
        self.clients.push(client);
        (self.jobs[job].holder, self.jobs[job].key) = (guardian, 0);
        self.arm_client(guardian);
    }

    fn start_command(&mut self, job: usize) {
        let Job { run, holder, key, .. } = self.jobs[job];
        note!(self, "client {run} starts a command");
        self.stats.commands += 1;
        self.jobs[job].stage = JobStage::Working;
        self.clients[holder].working = Some(key);
        let pause = self.around(self.plan.act_every * 2).max(1);
        self.after(pause, Happening::CommandEnds(job));
        self.check_beliefs(holder);
    }

    /// The command is dead.
    pub(crate) fn end_command(&mut self, job: usize, why: &str) {
        if self.jobs[job].stage != JobStage::Working {
            return;
        }
        note!(self, "the command of client {} {why}", self.jobs[job].run);
        self.jobs[job].stage = JobStage::Over;
        self.jobs[job].descriptor = None;
        let holder = self.jobs[job].holder;
        self.clients[holder].working = None;
        if self.clients[holder].origin == Origin::Local {
            self.turn_soon(0);
        }
        self.tend(job);
    }

    fn send_term(&mut self, job: usize) {
        if self.jobs[job].obeys {
            self.end_command(job, "gets SIGTERM");
        }
    }

    fn can_act(&self, index: usize) -> bool {
        self.clients[index].alive && !self.clients[index].away
    }

    /// Whether the command of a job has this descriptor open.
    pub(crate) fn is_inherited(&self, inode: u64) -> bool {
        self.jobs.iter().any(|job| job.descriptor == Some(inode))
    }

    /// The running processes of a job act on its state.
    pub(crate) fn tend(&mut self, job: usize) {
        let Job { run, holder, .. } = self.jobs[job];
        if !self.jobs[job].is_guarded() {
            if self.can_act(run) {
                self.tend_alone(job);
            }
            return;
        }
        if self.can_act(holder) {
            self.tend_as_guardian(job);
        }
        if self.can_act(run) {
            self.tend_beside_guardian(job);
        }
        self.arm_job(job);
    }

    /// `run` without a guardian releases the lock after the command, and ends the command if the
    /// lock was lost.
    fn tend_alone(&mut self, job: usize) {
        let Job { run, key, stage, .. } = self.jobs[job];
        match stage {
            JobStage::Working if !self.clients[run].live.contains(&key) => {
                self.end_command(job, "is killed: its lock is lost");
            }
            JobStage::Over => self.leave(run, key),
            _ => {}
        }
    }

    /// Releases a lock, and ends the session when that is done.
    fn leave(&mut self, index: usize, key: Key) {
        let client = &self.clients[index];
        if client.session.is_closed() {
        } else if !client.live.contains(&key) {
            self.feed(index, Input::Close);
        } else if !client.wishes[&key].given_up {
            self.cancel(index, key, false);
        }
    }

    fn tend_as_guardian(&mut self, job: usize) {
        let Job { run, holder, key, known, stage, .. } = self.jobs[job];
        let client = &self.clients[holder];
        let now = client.clock.read(self.now);
        let is_held = client.session.is_held(now, key);
        // It releases when `run` asks for it, or when `run` has exited and no command that it knows
        // is left.
        let alone = !self.clients[run].alive;
        if stage == JobStage::Over || (alone && !known) {
            return self.leave(holder, key);
        }
        let ttl = client.session.ttl().unwrap_or_default() * 1000;
        let left =
            client.session.lease_deadline().map_or(Micros::MAX, |deadline| deadline.saturating_sub(now));
        let may_start = is_held && left > ttl / WARN;
        if is_held && client.session.is_ready() {
            self.jobs[job].ready = true;
        }
        match stage {
            // Without the rule, `run` does not ask before it starts the command.
            JobStage::Starting if !is_held && self.plan.keeps(DriverRule::GuardianAllows) => {
                self.jobs[job].stage = JobStage::Over;
                self.leave(holder, key);
            }
            JobStage::Starting if known && may_start => self.start_command(job),
            // Sabotage: it gets a signal when the lock is lost, and all the time it wants.
            JobStage::Working if !self.plan.keeps(DriverRule::KillBeforeExpiry) && !is_held => {
                self.send_term(job);
            }
            JobStage::Working if !self.plan.keeps(DriverRule::KillBeforeExpiry) => {}
            JobStage::Working if !is_held || left <= ttl / KILL => {
                self.end_command(job, "is killed by the guardian");
            }
            JobStage::Working if left <= ttl / WARN => self.send_term(job),
            _ => {}
        }
        let deadline = self.clients[holder].session.lease_deadline();
        self.jobs[job].lease = deadline.map(|deadline| (deadline, ttl)).or(self.jobs[job].lease);
    }

    fn tend_beside_guardian(&mut self, job: usize) {
        let Job { run, holder, stage, ready, known, lease, .. } = self.jobs[job];
        let gone = !self.clients[holder].alive;
        let now = self.clients[run].clock.read(self.now);
        match stage {
            JobStage::Starting if gone => {
                self.jobs[job].stage = JobStage::Over;
                self.end_run(run);
            }
            JobStage::Starting if ready && !known => {
                if !self.plan.keeps(DriverRule::CommandIsKnown) {
                    // Sabotage: it notifies the guardian once the command runs, and may be killed
                    // before.
                    self.start_command(job);
                    if self.random.chance(200) {
                        return self.crash_client(run);
                    }
                }
                self.jobs[job].known = true;
                if !self.plan.keeps(DriverRule::GuardianAllows) && stage == JobStage::Starting {
                    self.start_command(job);
                }
                self.tend(job);
            }
            JobStage::Working => {
                let Some((deadline, ttl)) = lease else { return };
                let left = deadline.saturating_sub(now);
                if !self.plan.keeps(DriverRule::RunWatchesLease) {
                    return;
                }
                if left <= ttl / KILL {
                    self.end_command(job, "is killed by run");
                } else if gone || left <= ttl / WARN_BY_RUN {
                    self.send_term(job);
                }
            }
            JobStage::Over if self.clients[holder].session.is_closed() || gone => self.end_run(run),
            _ => {}
        }
    }

    /// The process of a `run` that has given its session away ends.
    fn end_run(&mut self, run: usize) {
        if self.clients[run].alive {
            self.crash_client(run);
        }
    }

    /// Looks again when a lease has to be renewed by then.
    fn arm_job(&mut self, job: usize) {
        let Job { run, stage, lease, timer, .. } = self.jobs[job];
        let (JobStage::Working, Some((deadline, ttl))) = (stage, lease) else { return };
        let clock = self.clients[run].clock;
        let looks = [WARN, WARN_BY_RUN, KILL].map(|part| clock.when(deadline.saturating_sub(ttl / part)));
        let Some(at) = looks.into_iter().find(|at| *at > self.now) else { return };
        if timer.is_none_or(|timer| timer <= self.now || at < timer) {
            self.jobs[job].timer = Some(at);
            self.at(at, Happening::Tend(job));
        }
    }

    /// A lock was released, or a session has ended: no command may work on.
    pub(crate) fn check_commands(&mut self, session: SessionId, rid: Option<u64>) {
        for job in 0..self.jobs.len() {
            let Job { run, holder, key, stage, descriptor, .. } = self.jobs[job];
            let Some(wish) = self.clients[holder].wishes.get_mut(&key) else { continue };
            let same =
                wish.number.is_some_and(|(id, number)| id == session && rid.is_none_or(|rid| rid == number));
            if stage != JobStage::Working || !same || wish.broken.is_some() || wish.ended {
                continue;
            }
            wish.ended = true;
            // A lock that lives by a FIFO lasts as long as the command. One with a lease does not
            // if no process can act.
            let tampered = descriptor.is_some_and(|inode| self.disk.fifos.is_tampered(inode));
            if !tampered && (run == holder || self.can_act(run) || self.can_act(holder)) {
                self.fail(format!("the command of client {run} works on without its lock"));
            }
        }
    }

    /// The machine of the server crashes, and the commands on it end.
    pub(crate) fn end_local_commands(&mut self) {
        for job in 0..self.jobs.len() {
            if self.clients[self.jobs[job].run].origin == Origin::Local {
                self.end_command(job, "ends with its machine");
            }
        }
    }

    /// Something is done to a process of a job.
    pub(crate) fn disturb_job(&mut self) {
        let working: Vec<_> =
            (0..self.jobs.len()).filter(|&job| self.jobs[job].stage != JobStage::Over).collect();
        if working.is_empty() {
            return;
        }
        let job = self.random.pick(&working);
        let Job { run, holder, .. } = self.jobs[job];
        let client = self.random.pick(&[run, holder]);
        match self.random.below(5) {
            0 if self.clients[client].alive => {
                self.crash_client(client);
                self.tend(job);
            }
            1 => self.end_command(job, "is killed"),
            _ => {
                let pause = self.choose_outage();
                self.suspend_client(client, pause);
            }
        }
    }
}
