//! The clocks of the machine, and its boot id.

use lockkeeper_service::Micros;
use rustix::time::{ClockId, clock_gettime};
use std::time::{SystemTime, UNIX_EPOCH};

/// The time of a clock that runs while the machine is suspended: a client's lease does, too.
pub(crate) fn now() -> Micros {
    #[cfg(target_os = "linux")]
    let clock = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = ClockId::Monotonic;
    let time = clock_gettime(clock);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    seconds.unwrap_or(0) * 1_000_000 + nanos.unwrap_or(0) / 1000
}

/// Milliseconds since the epoch, for display.
pub(crate) fn wall() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Identifies the boot of the machine: another one after every start.
pub fn boot_id() -> [u8; 16] {
    #[cfg(target_os = "linux")]
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    #[cfg(not(target_os = "linux"))]
    let text = {
        // By its path: a daemon that was started on demand has no PATH.
        let sysctl =
            std::process::Command::new("/usr/sbin/sysctl").args(["-n", "kern.bootsessionuuid"]).output();
        sysctl.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
    };
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).unwrap_or("0");
        *byte = u8::from_str_radix(pair, 16).unwrap_or(0);
    }
    id
}
