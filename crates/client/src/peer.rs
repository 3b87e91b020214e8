//! The credentials of the process at the other end of a local socket.
//!
//! For a process in another PID namespace the kernel reports the number 0. `rustix` has no such
//! number and returns an error, which would keep clients in containers from a server outside.

use rustix::fd::{AsFd, AsRawFd};
use std::io;

/// A process, as it was when it connected or listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) user: u32,
    /// None if it is in a PID namespace that this process does not see.
    pub(crate) pid: Option<u32>,
}

impl Peer {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[expect(unsafe_code, reason = "no safe wrapper knows processes of other PID namespaces")]
    pub(crate) fn of(socket: &impl AsFd) -> io::Result<Self> {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut size = libc::socklen_t::try_from(size_of::<libc::ucred>()).expect("it is small");
        let socket = socket.as_fd().as_raw_fd();
        // SAFETY: the socket is open as long as it is borrowed; `peer` is plain data of the size
        // that is passed.
        let done = unsafe {
            libc::getsockopt(
                socket,
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut peer).cast(),
                &raw mut size,
            )
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { user: peer.uid, pid: u32::try_from(peer.pid).ok().filter(|pid| *pid > 0) })
    }

    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    #[expect(unsafe_code, reason = "no safe wrapper knows the process")]
    pub(crate) fn of(socket: &impl AsFd) -> io::Result<Self> {
        let socket = socket.as_fd().as_raw_fd();
        let (mut user, mut group) = (0, 0);
        // SAFETY: the socket is open as long as it is borrowed; both are plain data.
        if unsafe { libc::getpeereid(socket, &raw mut user, &raw mut group) } != 0 {
            return Err(io::Error::last_os_error());
        }
        #[cfg(not(target_vendor = "apple"))]
        let pid = 0;
        #[cfg(target_vendor = "apple")]
        let mut pid: libc::pid_t = 0;
        #[cfg(target_vendor = "apple")]
        {
            let mut size = libc::socklen_t::try_from(size_of::<libc::pid_t>()).expect("it is small");
            let (at, room) = ((&raw mut pid).cast(), &raw mut size);
            // SAFETY: as above; the size is that of `pid`, which stays 0 if the call fails.
            unsafe { libc::getsockopt(socket, libc::SOL_LOCAL, libc::LOCAL_PEERPID, at, room) };
        }
        Ok(Self { user, pid: u32::try_from(pid).ok().filter(|pid| *pid > 0) })
    }
}

#[cfg(test)]
mod tests {
    use super::Peer;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_pair_is_of_one_process() {
        let (one, _other) = UnixStream::pair().expect("sockets can be made");
        let me = Peer { user: rustix::process::geteuid().as_raw(), pid: Some(std::process::id()) };
        assert_eq!(Peer::of(&one).expect("it is a local socket"), me);
    }
}
