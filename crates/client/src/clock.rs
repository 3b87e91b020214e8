//! The clock of sessions: monotonic, and running while the machine is suspended, as the server's
//! is.

use lockkeeper_service::Micros;
use rustix::time::{ClockId, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
/// On macOS it runs in suspend. Elsewhere there is nothing better.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// The time now. Never cached: read it after the input that it belongs to.
pub(crate) fn now() -> Micros {
    let time = clock_gettime(CLOCK);
    let part = |value: i64| Micros::try_from(value).unwrap_or(0);
    part(time.tv_sec) * 1_000_000 + part(time.tv_nsec) / 1000
}
