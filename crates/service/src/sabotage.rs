//! Rules that a test disables, to show that the simulation notices. Not part of a normal build.

/// A rule of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Rule {
    /// Answers wait for the commit of their round.
    SpeakAfterCommit,
    /// A Hello below the last one is refused.
    HelloNumbers,
    /// A superseded connection is closed.
    CloseSuperseded,
    /// The client takes nothing from an older connection.
    NewestConnectionOnly,
    /// The Welcome is acknowledged only after the end marker.
    AckAfterMarker,
    /// Nothing is sent between Hello and marker.
    SilentUntilMarker,
    /// The client's lease is counted from when it sent what was answered.
    LeaseFromSending,
    /// The client's lease lasts for less than three quarters of the ttl.
    LeaseIsShorter,
    /// A session ends no earlier than its ttl after its last message, or after the server began to
    /// lead.
    ExpireAfterTtl,
    /// Clocks show whole microseconds: a session ends one of them later.
    RoundUp,
    /// The client's lease has expired when three quarters have passed, not after that.
    LeaseIsStrict,
    /// After a start, a session has its whole ttl.
    HeardAtStart,
    /// The ttl is the session's, not the server's configuration.
    TtlOfSession,
    /// The ttl is raised before the Welcome that contains it is sent.
    RaiseBeforeTelling,
    /// The ttl is lowered only when that Welcome is acknowledged.
    LowerAfterAck,
    /// A newer Welcome cancels an older lowering.
    NewerCancelsLowering,
    /// A session has its requests, however often its client connects.
    ResumeKeepsRequests,
    /// A session lives by its FIFO once its client has confirmed the descriptor.
    FifoAfterConfirm,
    /// A session lives by its FIFO until its client knows that it has a lease.
    FifoUntilAck,
    /// A broken lock's notice is repeated until it is acknowledged.
    KeepTombstones,
    /// The Welcome's number exceeds those that are sent with it.
    WelcomeNumber,
    /// A force release's outcome is repeated until it is acknowledged.
    OutcomeIsKept,
    /// After a crash of the machine, nothing is granted before the longest lease has expired.
    WaitAfterCrash,
    /// After a crash of the machine, tokens skip ahead.
    SkipTokensAfterCrash,
    /// A message that is late by the client's clock is dropped: it reads the clock first.
    ClockBeforeMessage,
    /// Requests above the server's last number are sent again in their order.
    ResendInOrder,
    /// Listed requests that are no longer wanted are released.
    ReleaseUnwanted,
    /// A session that was given away has a lease, not a FIFO that closes with the process that took
    /// it.
    AdoptedHasLease,
    /// A session's FIFO is removed once the session's end is committed.
    RemoveFifoAfterCommit,
    /// A follower applies every entry.
    ApplyEveryEntry,
    /// A replica takes over once it has applied every entry.
    ServeAfterApplying,
    /// An entry of the ring is overwritten once a snapshot has it.
    KeepEntries,
    /// Entries are deleted once a snapshot has them, and no other is.
    DeleteBehindSnapshot,
    /// A replica that takes over from a leader that waits for unknown leases waits for them, too.
    StaysBlind,
    /// A store that an operator has restored is recovered also by a replica that remembers less
    /// than it has.
    AcceptWithoutMemory,
    /// An answer that could have been sent without a commit, and was not, waits for a round once
    /// the log takes writes again.
    LeftoversWait,
}

#[cfg(feature = "sabotage")]
mod switch {
    use super::Rule;
    use std::cell::RefCell;

    thread_local! {
        static AWAY: RefCell<Vec<Rule>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn set(rules: &[Rule]) {
        AWAY.with(|away| *away.borrow_mut() = rules.to_vec());
    }

    pub(crate) fn holds(rule: Rule) -> bool {
        AWAY.with(|away| !away.borrow().contains(&rule))
    }
}

/// Takes rules away on this thread, all others are there. Without the feature `sabotage`, nothing
/// happens.
pub fn sabotage(rules: &[Rule]) {
    #[cfg(feature = "sabotage")]
    switch::set(rules);
    let _ = rules;
}

/// Whether a rule is in force.
#[inline(always)]
pub(crate) fn holds(rule: Rule) -> bool {
    #[cfg(feature = "sabotage")]
    return switch::holds(rule);
    #[cfg(not(feature = "sabotage"))]
    {
        let _ = rule;
        true
    }
}
