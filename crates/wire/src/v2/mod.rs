//! Version 2 of the protocol: sessions that resume by comparison.
//!
//! Both directions are MessagePack arrays. The first element is the kind of the message. A reader
//! ignores elements after those it knows, so a later version can add some; what must be understood
//! is announced by a feature bit in `Hello` and `Welcome`.

mod to_client;
mod to_server;

pub use to_client::{Deadlock, Entry, Listed, Step, ToClient};
pub use to_server::{EndFlags, Flags, NestedIn, Scope, ToServer};

/// The version of the protocol.
pub const VERSION: u32 = 2;

/// Proves that a client is the one that opened a session. Sixteen random bytes.
pub type Secret = [u8; 16];

/// Bits of `features` in `Hello` and `Welcome`.
pub mod feature {
    /// The client can receive a descriptor: its session can live as long as that is open.
    pub const FIFO: u64 = 1;
    /// The client ends for good when its connection is closed with WebSocket status 1001.
    pub const GOING_AWAY_ENDS: u64 = 2;
}

/// Why the server refuses something, or closes a connection. Codes below 32 are final for that
/// request or connection; from 32 on, the client tries again later.
pub mod code {
    /// The name is reserved, or the options do not go together (§3.2.1 steps 5 to 7).
    pub const NOT_SUPPORTED: u32 = 1;
    /// A limit was reached.
    pub const LIMIT: u32 = 2;
    /// The log cannot take more.
    pub const STORAGE: u32 = 4;
    /// The credentials do not allow it.
    pub const FORBIDDEN: u32 = 6;
    /// The message cannot be decoded.
    pub const MALFORMED: u32 = 16;
    /// The message is not valid at this point.
    pub const OUT_OF_ORDER: u32 = 17;
    /// The server does not support the client's version.
    pub const VERSION: u32 = 18;
    /// No credentials, or none for this bucket.
    pub const UNAUTHORIZED: u32 = 20;
    /// A newer connection has taken over the session.
    pub const SUPERSEDED: u32 = 21;
    /// Another client or the operator ended the session.
    pub const ENDED: u32 = 22;
    /// The server stops, or no longer leads. Another one takes over.
    pub const STOPPING: u32 = 32;
    /// The machine crashed: the server waits until earlier leases have expired.
    pub const RECOVERING: u32 = 33;
}
