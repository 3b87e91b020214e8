//! The FIFOs of local sessions, as the driver of a daemon sees them.

use crate::{
    DriverRule,
    simulation::{Simulation, note},
};
use lockkeeper_service::{Action, Fifo, Server, SessionId};

impl Simulation {
    /// Ends sessions whose FIFO has no writer.
    pub(crate) fn look_at_fifos(&mut self, index: usize) {
        let watches = std::mem::take(&mut self.daemons[index].watches);
        for (session, fifo) in watches {
            let held = self.clients.iter().any(|client| client.descriptor == Some(fifo.inode))
                || self.is_inherited(fifo.inode);
            if held || self.descriptor_in_flight(fifo.inode) {
                self.daemons[index].watches.push((session, fifo));
            } else if let Some(server) = &mut self.daemons[index].server {
                let result = server.fifo_closed(session, fifo);
                note!(self, "daemon {index}: no writer has FIFO {} of {session:016x}", fifo.inode);
                self.unharmed(result);
            }
        }
    }

    /// Does what only a driver can. It may be killed after any step.
    pub(crate) fn take_actions(&mut self, index: usize) {
        while let Some(action) = self.daemons[index].server.as_mut().and_then(Server::next_action) {
            note!(self, "daemon {index}: {action:?}");
            match action {
                Action::PassFifo { connection, session } => {
                    let inode = self.disk.fifos.make(session);
                    if self.random.chance(self.plan.no_fifo) {
                        // There was no descriptor for it, or no room. The session has a lease.
                        self.disk.fifos.remove(session);
                        continue;
                    }
                    let fifo = Fifo { device: 1, inode, boot: boot(self.disk.boot) };
                    let Some(&at) = self.daemons[index].connections.get(&connection) else { continue };
                    self.connections[at].descriptor = Some(inode);
                    if let Some(server) = &mut self.daemons[index].server {
                        server.fifo_passed(connection, fifo);
                    }
                }
                Action::WatchFifo { session, fifo } => self.watch_fifo(index, session, fifo),
                Action::RemoveFifo { session } => {
                    self.disk.fifos.remove(session);
                    self.daemons[index].watches.retain(|(watched, _)| *watched != session);
                }
            }
            if !self.calm && self.random.chance(self.plan.kill_at_commit) {
                return self.kill_and_restart(index, "killed before it committed what it did");
            }
        }
    }

    /// An operator copies or restores the state directory while no daemon runs.
    pub(crate) fn tamper_with_fifos(&mut self) {
        for session in self.disk.fifos.sessions() {
            if self.random.chance(self.plan.replace_fifo) && !self.calm {
                let removes = self.random.chance(500);
                self.disk.fifos.tamper(session, removes);
            }
        }
    }

    /// Opens a session's FIFO by its name, and has it watched.
    fn watch_fifo(&mut self, index: usize, session: SessionId, fifo: Fifo) {
        let other_boot = fifo.boot != boot(self.disk.boot);
        let found = self.disk.fifos.is_found(session, fifo.inode);
        let Some(server) = &mut self.daemons[index].server else { return };
        if !server.is_detached(session, fifo) {
            return;
        }
        if other_boot || !found && !self.plan.keeps(DriverRule::UnknownIsNotDead) {
            let result = server.fifo_closed(session, fifo);
            self.unharmed(result);
        } else if found {
            self.daemons[index].watches.push((session, fifo));
            self.turn_soon(index);
        } else {
            server.fifo_unverifiable(session);
            note!(self, "daemon {index}: the FIFO of {session:016x} is not where it was");
            if !self.disk.fifos.is_tampered(fifo.inode) {
                self.fail(format!("nobody can say whether the client of {session:016x} is alive"));
            }
        }
    }
}

fn boot(number: u64) -> [u8; 16] {
    u128::from(number).to_le_bytes()
}
