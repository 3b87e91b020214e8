//! The messages between Lockkeeper's daemon and its clients, and the bytes they are sent as.
//!
//! `docs/protocol.md` is the description for people; this crate is the same for Rust. It has no I/O: it turns a
//! message into bytes and bytes into a message, and refuses what is neither. Both directions are MessagePack arrays
//! whose first element says which message it is. On a stream, each is preceded by its length ([`frame`]).
#![forbid(unsafe_code)]

pub mod frame;
mod pack;
mod to_client;
mod to_server;
pub mod v2;
pub mod websocket;

pub use pack::Malformed;
pub use to_client::{Deadlock, Entry, Step, ToClient};
pub use to_server::{Claim, Flags, Scope, ToServer};

/// The version of the protocol that this crate speaks. Two sides that do not speak the same part with an error.
pub const VERSION: u32 = 1;

/// Why a daemon refuses something, or parts with a client.
pub mod code {
    /// The name is reserved, or the options do not go together (§3.2.1 steps 5 to 7).
    pub const NOT_SUPPORTED: u32 = 1;
    /// A limit stands against it.
    pub const LIMIT: u32 = 2;
    /// The state directory cannot be written to.
    pub const STORAGE: u32 = 4;
    /// The daemon has started again and waits for its clients.
    pub const GRACE: u32 = 5;
    /// The credentials do not allow it.
    pub const FORBIDDEN: u32 = 6;
    /// A message that is none.
    pub const MALFORMED: u32 = 16;
    /// A message at the wrong time.
    pub const OUT_OF_ORDER: u32 = 17;
    /// The two sides do not speak the same version.
    pub const VERSION: u32 = 18;
    /// A claim without a proof.
    pub const FORGED: u32 = 19;
    /// No credentials, or none that are good for this bucket.
    pub const UNAUTHORIZED: u32 = 20;
    /// The daemon stops, and will be there again.
    pub const STOPPING: u32 = 32;
}

/// The secret that resumes a session, and the daemon's signature over a grant: bytes that mean nothing to others.
pub type Seal = [u8; 16];
