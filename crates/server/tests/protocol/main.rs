//! The protocol as a stranger meets it: bytes on a Unix socket or a WebSocket, and a real daemon behind it.
//!
//! Nothing here waits for time to pass: whatever is waited for is a message.

mod client;
mod comeback;
mod daemon;
mod flow;
mod handshake;
mod hostile;
mod identity;
mod intruders;
mod locks;
mod network;
mod python;
mod web;
