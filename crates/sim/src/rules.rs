//! Rules of the drivers that a test disables. The service's own are in `lockkeeper_service::Rule`.

/// A rule that a driver of the service keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverRule {
    /// A torn record is cut off before the next one is written.
    CutTornTail,
    /// The mark of leases and tokens is synced before clients learn them.
    MarkBeforeTelling,
    /// The mark stays while leases from before a crash may be valid.
    MarkStaysWhileBlind,
    /// A daemon that is started again while leases from before a crash may be valid waits as the
    /// one before did.
    StaysBlind,
    /// Each message is read with the time of now, not with that of an earlier turn.
    FreshClock,
    /// A session whose FIFO cannot be checked does not count as dead.
    UnknownIsNotDead,
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
    /// A round without records is done once a read or write, sent after its inputs, shows that this
    /// daemon leads.
    ConfirmEmptyRounds,
    /// A takeover succeeds only if the leader's key has the revision that was seen.
    TakeoverComparesLeader,
    /// A daemon that hands over has closed its connections before, and says nothing any more.
    SilentHandOver,
    /// An operation without an answer is sent again until it has one.
    RetryUntilAnswered,
    /// While the store is full, answers that do not depend on the state are sent once a read, sent
    /// after their input arrived, shows that this daemon leads.
    ConfirmStateless,
    /// A follower reads the newest snapshot before the head: the head has all that the snapshot
    /// has.
    SnapshotFirst,
    /// A follower whose takeover was refused, and that lags, reads what it lacks.
    CatchUpWhenRefused,
    /// A daemon that begins to lead begins a snapshot if much of the ring is used: it could not
    /// append to a full one.
    SnapshotWhenLeading,
    /// Entries that a snapshot has are deleted only if the leader's key has the revision that was
    /// seen last.
    DeleteComparesLeader,
    /// The head records that leases from before a recovery may be valid, until they have expired.
    SettleWhenExpired,
    /// Once there is a snapshot, only chunks of earlier ones are deleted: a late call would delete
    /// those of a later one.
    DeleteEarlierChunks,
}
