//! The few calls of etcd that Lockkeeper's fleet needs.
//!
//! One call is one attempt at one member, with a deadline. There is no balancing and no retry: an
//! unanswered call may have been executed, or may be later, and only its caller knows how to find
//! out. The next call goes to the next member.
#![forbid(unsafe_code)]

mod error;
mod messages;
mod settings;
mod watch;

pub use error::Error;
pub use messages::{KeyValue, Status};
pub use settings::{Settings, Tls};
pub use watch::{Change, Watch};

use messages::{
    AuthenticateRequest, AuthenticateResponse, CompactionRequest, Compare, CompareResult, CompareTarget,
    DeleteRangeRequest, Done, Empty, PutRequest, RangeRequest, RangeResponse, RequestKind, RequestOp,
    TxnRequest, TxnResponse,
};
use prost::Message;
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tonic::{
    Request, client::Grpc, codegen::http::uri::PathAndQuery, metadata::AsciiMetadataValue, transport::Channel,
};
use tonic_prost::ProstCodec;

/// The longest answer that is taken.
const LONGEST: usize = 256 << 20;

/// How long a member may take to connect.
const CONNECT: Duration = Duration::from_secs(1);

/// A cluster of etcd.
#[derive(Clone)]
pub struct Etcd {
    shared: Arc<Shared>,
}

struct Shared {
    members: Vec<Member>,
    /// The next member to call.
    current: AtomicUsize,
    credentials: Option<(String, String)>,
    /// The token for which a password was exchanged.
    token: Mutex<Option<AsciiMetadataValue>>,
    deadline: Duration,
}

struct Member {
    name: String,
    channel: Channel,
}

/// Writes that happen together, if a key is still as it was seen.
#[derive(Clone, Debug, Default)]
pub struct Guarded {
    /// The key.
    pub key: Vec<u8>,
    /// Its value and its revision; none if it must not be there. A store that was restored can have
    /// another value with the same revision.
    pub guard: Option<(Vec<u8>, i64)>,
    /// Keys that are written.
    pub puts: Vec<(Vec<u8>, Vec<u8>)>,
    /// Ranges of keys that are deleted: the first, and the end. None of those that are written is
    /// in them.
    pub deletes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The outcome of guarded writes.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// They are done; every key that was written has this revision.
    Done(i64),
    /// The key had another revision or value. This is its current state.
    Refused(Option<KeyValue>),
}

/// The end of a range that has all keys with that beginning.
pub fn end_of_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // All keys.
    vec![0]
}

impl Etcd {
    /// Connects when it is first used. Must be called within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or the settings make no sense.
    pub fn new(settings: &Settings) -> Result<Self, Error> {
        let members = settings.members.iter().map(|name| {
            let endpoint = settings.endpoint(name)?.connect_timeout(CONNECT).tcp_nodelay(true);
            Ok(Member { name: name.clone(), channel: endpoint.connect_lazy() })
        });
        let members: Vec<_> = members.collect::<Result<_, Error>>()?;
        if members.is_empty() {
            return Err(Error::Settings("etcd:// names no member".into()));
        }
        let credentials = settings.credentials()?;
        let shared = Shared {
            members,
            current: AtomicUsize::new(0),
            credentials,
            token: Mutex::new(None),
            deadline: settings.deadline,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The members, as they were named.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &str> {
        self.shared.members.iter().map(|member| member.name.as_str())
    }

    /// How long a call may take.
    pub fn deadline(&self) -> Duration {
        self.shared.deadline
    }

    /// A key, and the revision of the store at which it was read. Linearizable: what was written
    /// before is seen.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn get(&self, key: &[u8]) -> Result<(Option<KeyValue>, i64), Error> {
        let request = RangeRequest { key: key.into(), ..RangeRequest::default() };
        let answer: RangeResponse = self.call("/etcdserverpb.KV/Range", request).await?;
        let revision = answer.header.map_or(0, |header| header.revision);
        Ok((answer.kvs.into_iter().next(), revision))
    }

    /// Keys from `key` up to, and without, `end`, at most `limit`, in their order; and whether
    /// there are more. Linearizable.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn range(&self, key: &[u8], end: &[u8], limit: usize) -> Result<(Vec<KeyValue>, bool), Error> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let request = RangeRequest { key: key.into(), range_end: end.into(), limit };
        let answer: RangeResponse = self.call("/etcdserverpb.KV/Range", request).await?;
        Ok((answer.kvs, answer.more))
    }

    /// Writes a key.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn put(&self, key: Vec<u8>, value: Vec<u8>) -> Result<(), Error> {
        let _: Done = self.call("/etcdserverpb.KV/Put", PutRequest { key, value }).await?;
        Ok(())
    }

    /// Deletes the keys from `key` up to, and without, `end`. Returns the revision of the store
    /// after that.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn delete(&self, key: Vec<u8>, range_end: Vec<u8>) -> Result<i64, Error> {
        let done: Done =
            self.call("/etcdserverpb.KV/DeleteRange", DeleteRangeRequest { key, range_end }).await?;
        Ok(done.header.map_or(0, |header| header.revision))
    }

    /// Writes if the guard's key is unchanged.
    ///
    /// # Errors
    ///
    /// [`Error`]. If it is [`Error::NoAnswer`], the writes may still be executed, now or later.
    pub async fn write(&self, writes: Guarded) -> Result<Outcome, Error> {
        let key = writes.key;
        let compare = |target, revision, value| Compare {
            result: CompareResult::Equal as i32,
            target: target as i32,
            key: key.clone(),
            mod_revision: revision,
            value,
        };
        let (value, revision) = writes.guard.map_or((None, 0), |(value, revision)| (Some(value), revision));
        let mut compares = vec![compare(CompareTarget::Mod, Some(revision), None)];
        compares.extend(value.map(|value| compare(CompareTarget::Value, None, Some(value))));
        let op = |request| RequestOp { request: Some(request) };
        let put = |(key, value)| op(RequestKind::Put(PutRequest { key, value }));
        let delete = |(key, range_end)| op(RequestKind::Delete(DeleteRangeRequest { key, range_end }));
        let deletes = writes.deletes.into_iter().map(delete);
        let request = TxnRequest {
            compare: compares,
            success: deletes.chain(writes.puts.into_iter().map(put)).collect(),
            failure: vec![op(RequestKind::Range(RangeRequest { key, ..RangeRequest::default() }))],
        };
        let answer: TxnResponse = self.call("/etcdserverpb.KV/Txn", request).await?;
        if answer.succeeded {
            return Ok(Outcome::Done(answer.header.map_or(0, |header| header.revision)));
        }
        let range = answer.responses.into_iter().next().and_then(|response| response.range);
        Ok(Outcome::Refused(range.and_then(|range| range.kvs.into_iter().next())))
    }

    /// Forgets the history before a revision, of all keys of the store.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn compact(&self, revision: i64) -> Result<(), Error> {
        let _: Done = self.call("/etcdserverpb.KV/Compact", CompactionRequest { revision }).await?;
        Ok(())
    }

    /// The status of each member.
    pub async fn status(&self) -> Vec<(String, Result<Status, Error>)> {
        let mut all = Vec::new();
        for (at, member) in self.shared.members.iter().enumerate() {
            all.push((
                member.name.clone(),
                self.call_at(at, "/etcdserverpb.Maintenance/Status", Empty {}).await,
            ));
        }
        all
    }

    /// One attempt at the current member. After one without an answer, the next member is the
    /// current one.
    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Error>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let at = self.shared.current.load(Relaxed);
        let answer = self.call_at(at, path, request).await;
        if matches!(answer, Err(Error::NoAnswer { .. })) {
            self.leave(at);
        }
        answer
    }

    /// Another member is the current one, if this is.
    fn leave(&self, at: usize) {
        let next = (at + 1) % self.shared.members.len();
        let _ = self.shared.current.compare_exchange(at, next, Relaxed, Relaxed);
    }

    async fn call_at<Q, A>(&self, at: usize, path: &'static str, message: Q) -> Result<A, Error>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let attempt = async {
            let mut request = Request::new(message);
            if let Some(token) = self.token(at).await? {
                request.metadata_mut().insert("token", token);
            }
            self.unary(at, path, request).await
        };
        self.within_deadline(at, attempt).await
    }

    /// The result of an attempt at a member, within the deadline.
    async fn within_deadline<T>(
        &self,
        at: usize,
        attempt: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let deadline = self.shared.deadline;
        tokio::time::timeout(deadline, attempt).await.unwrap_or_else(|_| {
            let member = self.shared.members[at].name.clone();
            Err(Error::NoAnswer { member, why: format!("no answer within {deadline:?}") })
        })
    }

    /// A connection to a member.
    async fn connected(&self, at: usize) -> Result<Grpc<Channel>, Error> {
        let Member { name, channel } = &self.shared.members[at];
        let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(LONGEST);
        match grpc.ready().await {
            Ok(()) => Ok(grpc),
            Err(error) => Err(Error::NoAnswer { member: name.clone(), why: error::chain(&error) }),
        }
    }

    async fn unary<Q, A>(&self, at: usize, path: &'static str, request: Request<Q>) -> Result<A, Error>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.connected(at).await?;
        let path = PathAndQuery::from_static(path);
        let codec: ProstCodec<Q, A> = ProstCodec::default();
        match grpc.unary(request, path, codec).await {
            Ok(answer) => Ok(answer.into_inner()),
            Err(status) => {
                if error::is_token_over(&status) {
                    // It has expired, etcd was restarted, or has other users: the next call has
                    // another.
                    *self.shared.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
                }
                Err(Error::of(&self.shared.members[at].name, &status))
            }
        }
    }

    /// The authentication token, if there is a password.
    async fn token(&self, at: usize) -> Result<Option<AsciiMetadataValue>, Error> {
        let Some((name, password)) = self.shared.credentials.clone() else { return Ok(None) };
        let known = self.shared.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if known.is_some() {
            return Ok(known);
        }
        let request = Request::new(AuthenticateRequest { name, password });
        let answer: AuthenticateResponse = self.unary(at, "/etcdserverpb.Auth/Authenticate", request).await?;
        let token: Option<AsciiMetadataValue> = answer.token.parse().ok();
        self.shared.token.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&token);
        Ok(token)
    }
}
