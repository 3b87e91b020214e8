//! Heartbeats on the network, and the time up to which locks may be believed in. The clock runs on while the machine is
//! suspended: the daemon's does.

use crate::line::Line;
use rustix::{
    event::{PollFd, PollFlags, poll},
    time::{
        ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
        timerfd_create, timerfd_settime,
    },
};
use std::{collections::VecDeque, io, os::fd::OwnedFd, time::Duration};

/// The time since the machine was started.
pub(crate) fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// For how long a daemon of that ttl may be gone before what is held is taken for lost: before it gives up on this side, this
/// side has given up.
pub(crate) fn belief(ttl: Duration) -> Duration {
    ttl * 3 / 4
}

pub(crate) struct Pulse {
    timer: OwnedFd,
    ttl: Duration,
    /// When the last message was sent that the daemon has answered.
    answered: Duration,
    /// When the pings were sent that it has not.
    pings: VecDeque<Duration>,
    next: Duration,
}

/// What there is to do.
pub(crate) enum Due {
    Read,
    Ping,
    /// The daemon has not been heard for so long that it may take this side for lost.
    Lost,
}

impl Pulse {
    /// From a hello that was sent at that time, and answered.
    pub(crate) fn new(hello: Duration, ttl: Duration) -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
        Ok(Self { timer, ttl, answered: hello, pings: VecDeque::new(), next: hello + ttl / 5 })
    }

    /// Up to when the locks may be believed in.
    pub(crate) fn deadline(&self) -> Duration {
        self.answered + belief(self.ttl)
    }

    /// Waits until there is something to do.
    pub(crate) fn wait(&mut self, line: &Line) -> io::Result<Due> {
        loop {
            let now = now();
            if now >= self.deadline() {
                return Ok(Due::Lost);
            }
            if now >= self.next {
                self.pings.push_back(now);
                // So often that the daemon hears something within each quarter of the ttl.
                self.next = now + self.ttl / 5;
                return Ok(Due::Ping);
            }
            let at = Timespec::try_from(self.next.min(self.deadline())).map_err(io::Error::other)?;
            let at = Itimerspec { it_interval: Timespec::default(), it_value: at };
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &at)?;
            let mut either = [PollFd::new(line, PollFlags::IN), PollFd::new(&self.timer, PollFlags::IN)];
            match poll(&mut either, None) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) if !either[0].revents().is_empty() => return Ok(Due::Read),
                Ok(_) => {}
            }
        }
    }

    /// A pong has come.
    pub(crate) fn pong(&mut self) {
        if let Some(sent) = self.pings.pop_front() {
            self.answered = sent;
        }
    }
}
