//! Rules of the drivers that a test takes away: the service's own are in `lockkeeper_service::Rule`.

/// A rule that a driver of the service keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverRule {
    /// A torn record is cut off before the next one is written.
    CutTornTail,
    /// The mark of leases and tokens is synced before they are told.
    MarkBeforeTelling,
    /// The mark stays while leases from before a crash may be valid.
    MarkStaysWhileBlind,
    /// A daemon that is started again while leases from before a crash may be valid waits as the one before did.
    StaysBlind,
    /// The guardian ends a command before the lease can expire.
    KillBeforeExpiry,
    /// `run` ends a command whose guardian is gone or stopped before the lease can expire.
    RunWatchesLease,
    /// The guardian knows of a command before it is executed.
    CommandIsKnown,
    /// A command is executed if the guardian allows it: the lease is valid then.
    GuardianAllows,
    /// A command inherits the FIFO once that is confirmed: until then the session has a lease.
    ConfirmedFifo,
    /// An append succeeds only if the leader's key has the revision that was seen last.
    AppendComparesLeader,
    /// A round is done once its append is known to have succeeded.
    AnswerAfterAppend,
    /// A round without records is done once a read or write, sent after its inputs, shows that this daemon leads.
    ConfirmEmptyRounds,
    /// A takeover succeeds only if the leader's key has the revision that was seen.
    TakeoverComparesLeader,
    /// A daemon is silent from before it sends a hand-over until it knows what became of it.
    SilentHandOver,
    /// A follower applies every entry.
    ApplyEveryEntry,
    /// A leader serves once it has applied everything up to its takeover.
    ServeAfterApplying,
    /// A lost reply is settled by reading.
    SettleByReading,
}
