//! Virtual time, and the clocks of machines, which run at different rates.
//!
//! Virtual time counts ticks. A clock at full rate (12) counts a microsecond in 12 ticks, one at rate
//! 9 in 16: the rates differ by exactly 4/3, in whole numbers. A clock shows whole microseconds, as
//! real ones do.

use lockkeeper_service::Micros;

/// Virtual time.
pub(crate) type Ticks = u64;

/// The fastest rate, and the slowest that rule 5 of the leases allows beside it.
pub(crate) const FASTEST: u64 = 12;
pub(crate) const SLOWEST: u64 = 9;

/// Parts of a microsecond that a clock counts.
const PARTS: u64 = FASTEST * FASTEST;

/// So many microseconds of the fastest clock.
pub(crate) const fn ticks(micros: Micros) -> Ticks {
    micros * FASTEST
}

/// The clock of a machine. It runs while the machine is suspended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    since: Ticks,
    parts: u64,
    rate: u64,
}

impl Clock {
    /// A clock that shows that time now.
    pub(crate) fn new(now: Ticks, shows: Micros, rate: u64) -> Self {
        assert!((SLOWEST..=FASTEST).contains(&rate), "clocks differ in rate by 4/3 at most");
        Self { since: now, parts: shows * PARTS, rate }
    }

    pub(crate) fn read(&self, now: Ticks) -> Micros {
        (self.parts + (now - self.since) * self.rate) / PARTS
    }

    /// The first tick at which it shows that time.
    pub(crate) fn when(&self, shows: Micros) -> Ticks {
        self.since + (shows * PARTS).saturating_sub(self.parts).div_ceil(self.rate)
    }

    /// Runs at another rate from now on.
    pub(crate) fn set_rate(&mut self, now: Ticks, rate: u64) {
        self.parts += (now - self.since) * self.rate;
        (self.since, self.rate) = (now, rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_differ_by_exactly_a_third() {
        let (slow, fast) = (Clock::new(7, 100, SLOWEST), Clock::new(7, 100, FASTEST));
        let now = 7 + ticks(4_000_000);
        assert_eq!(slow.read(now), 100 + 3_000_000);
        assert_eq!(fast.read(now), 100 + 4_000_000);
        assert_eq!(slow.when(100 + 3_000_000), now);
        assert_eq!(slow.read(now - 1), 100 + 3_000_000 - 1);
    }

    #[test]
    fn another_rate_counts_from_when_it_is_set() {
        let mut clock = Clock::new(0, 0, FASTEST);
        clock.set_rate(ticks(1000), SLOWEST);
        assert_eq!(clock.read(ticks(2000)), 1750);
        assert_eq!(clock.when(1750), ticks(2000));
    }
}
