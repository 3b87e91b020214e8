//! The protocol as a stranger meets it: bytes on a Unix socket or a WebSocket, and a real daemon behind it, which is
//! killed for real.
//!
//! Nothing here waits for time to pass: whatever is waited for is a message.

mod client;
mod crash;
mod daemon;
mod disk;
mod durable;
mod fifo;
mod flow;
mod handshake;
mod hostile;
mod identity;
mod intruders;
mod leases;
mod locks;
mod namespace;
mod network;
mod process;
mod resume;
mod temp;
mod web;
